#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"

namespace cortado::s5_test {
namespace {

// By default half as many states as channels, and at least one.
TEST(S5, StatesByDefault) {
  for (const auto& [dim, states] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {24, 12}}) {
    MixerContext context;
    context.dim = dim;
    const auto mixer = make_mixer(parse_json(R"({"mixer": "s5"})", "test"), context, "test");
    EXPECT_EQ(mixer->named_parameters()["log_step"].numel(), states) << dim;
  }
}

}  // namespace
}  // namespace cortado::s5_test
