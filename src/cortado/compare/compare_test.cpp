#include "cortado/compare/compare.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

// The settings of every comparable mixer are valid at the width of configs/compare.json.
TEST(Compare, KnowsSettingsOfEveryMixer) {
  MixerContext context;
  context.dim = 128;
  context.heads = 4;
  context.layers = 4;
  context.rotary = true;
  for (const std::string& name : comparable_mixers()) {
    SCOPED_TRACE(name);
    EXPECT_GT(make_mixer(mixer_settings(name, 128), context, name)->state_bytes(256), 0);
  }
  for (const Mechanism* mechanism : mechanisms()) {
    for (const auto& [name, settings] : mechanism->variants) {
      const Json known = mixer_settings(name, 64), wanted = parse_json(settings, name);
      EXPECT_EQ(known.at("mixer"), mechanism->name);
      for (const auto& [key, value] : wanted.items()) EXPECT_EQ(known.at(key), value) << name;
    }
  }
  EXPECT_EQ(mixer_settings("sliding_window", 64).at("window"), 129);
  EXPECT_NE(testing::error_of([] { mixer_settings("retentio", 64); }).find("did you mean \"retention\""),
            std::string::npos);
}

TEST(Compare, MixersWithoutOrderGetPositions) {
  const Json rotary = {{"positions", "rotary"}}, learned = {{"positions", "learned"}};
  EXPECT_EQ(with_mixer(rotary, "latte", 8)["positions"], "sinusoidal");
  EXPECT_EQ(with_mixer(Json::object(), "linear", 8)["positions"], "sinusoidal");
  EXPECT_EQ(with_mixer(rotary, "latte", 8, /*bare=*/true)["positions"], "rotary");
  EXPECT_EQ(with_mixer(learned, "latte", 8)["positions"], "learned");
  for (const char* mixer : {"softmax", "gla", "abc", "mamba"}) {
    EXPECT_EQ(with_mixer(rotary, mixer, 8)["positions"], "rotary") << mixer;
  }
}

// Swaps two tokens before the last one: the last output of an orderless mixer does not change.
TEST(Compare, OrderlessMixersAreThose) {
  at::manual_seed(1);
  MixerContext context{.dim = 16, .heads = 2};
  context.rotary = true;
  const Tensor x = at::randn({1, 3, 16}), turned = x.index_select(1, at::tensor({1, 0, 2}));
  const at::NoGradGuard no_grad;
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    const auto mixer = make_mixer(mixer_settings(mechanism->name, 16), context, mechanism->name);
    for (Tensor& parameter : mixer->parameters()) parameter.add_(at::randn_like(parameter) * 0.3);
    const auto last = [&](const Tensor& in) { return mixer->forward(in, {}, nullptr).select(1, 2); };
    const bool same = at::allclose(last(x), last(turned), 1e-4, 1e-5);
    EXPECT_EQ(same, mechanism->orderless) << mechanism->name;
  }
}

}  // namespace
}  // namespace cortado
