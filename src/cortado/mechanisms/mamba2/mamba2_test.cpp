// Mamba-2's initial values, which a comparison with the definition does not cover.
#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"

namespace cortado {
namespace {

// -A is uniform in [1, 16], the step softplus(bias) log-uniform in [0.001, 0.1].
TEST(Mamba2, StartsWithThePapersDecaysAndSteps) {
  at::manual_seed(3);
  const auto mixer = make_mixer({{"mixer", "mamba2"}, {"heads", 256}, {"expand", 2}}, {.dim = 512, .heads = 4}, "test");
  const auto parameters = mixer->named_parameters();
  const Tensor decay = parameters["a_log"].exp(), step = at::softplus(parameters["step_bias"]);
  EXPECT_GE(decay.min().item<double>(), 1.0);
  EXPECT_LE(decay.max().item<double>(), 16.0);
  EXPECT_NEAR(decay.mean().item<double>(), 8.5, 1.0);
  EXPECT_GE(step.min().item<double>(), 0.00099);
  EXPECT_LE(step.max().item<double>(), 0.101);
  EXPECT_NEAR(step.log().mean().item<double>(), std::log(0.01), 0.3);
}

}  // namespace
}  // namespace cortado
