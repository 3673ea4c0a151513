// Compares state bytes, operations and key-value pairs with recorded figures, which come from formulas once written by
// hand in every mixer. A line of a folder's sizes.json: [tokens, bytes of one row in float32, operations, [pairs of
// softmax attention, pairs of the state]].
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cortado/mechanisms/registry.h"

namespace cortado {
namespace {

Json sizes_at(const Mixer& mixer, int64_t tokens) {
  const auto pairs = mixer.pairs(tokens);
  return {tokens, mixer.state_bytes(tokens), mixer.flops_per_token(tokens),
          pairs ? Json{pairs->softmax, pairs->state} : Json()};
}

class MixerSizes : public ::testing::TestWithParam<const Mechanism*> {};

TEST_P(MixerSizes, AreThoseOfTheFormulas) {
  const char* source = std::getenv("CORTADO_SOURCE");
  const auto folders = std::filesystem::path(source ? source : ".") / "src/cortado/mechanisms";
  int examples = 0;
  for (const auto& folder : std::filesystem::directory_iterator(folders)) {
    const auto path = folder.path() / "sizes.json";
    if (!std::filesystem::exists(path)) continue;
    for (const Json& entry : read_json_file(path)) {
      if (entry["settings"]["mixer"] != GetParam()->name) continue;
      SCOPED_TRACE(entry["settings"].dump());
      MixerContext context;
      context.dim = 24;
      context.heads = 4;
      context.causal = GetParam()->causal;
      const auto mixer = make_mixer(entry["settings"], context, path);
      for (const Json& sizes : entry["sizes"]) EXPECT_EQ(sizes_at(*mixer, sizes[0]).dump(), sizes.dump());
      ++examples;
    }
  }
  EXPECT_GT(examples, 0);
}

INSTANTIATE_TEST_SUITE_P(All, MixerSizes, ::testing::ValuesIn(mechanisms()),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace cortado
