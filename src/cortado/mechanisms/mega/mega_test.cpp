#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"

namespace cortado::mega_test {
namespace {

using at::Tensor;

Tensor output_with(const std::string& settings) {
  at::manual_seed(1);
  MixerContext context;
  context.dim = 32;
  context.causal = true;
  const auto mixer = make_mixer(parse_json(R"({"mixer": "mega")" + settings + "}", "test"), context, "test");
  const at::NoGradGuard no_grad;
  for (const char* name : {"bias_alpha", "bias_beta"}) mixer->named_parameters()[name].mul_(50);
  return mixer->forward(at::randn({1, 40, 32}), {}, nullptr);
}

// The definition reads the same settings, so the conformance tests cannot catch an error here.
TEST(Mega, TheSettingsSayTheBiasesAngles) {
  const Tensor usual = output_with("");
  EXPECT_TRUE(output_with(R"(, "rope_theta": 10000)").equal(usual));
  EXPECT_FALSE(output_with(R"(, "rope_theta": 100)").allclose(usual, 1e-4, 1e-4));
  EXPECT_FALSE(output_with(R"(, "rope_scaling": {"type": "linear", "factor": 4})").allclose(usual, 1e-4, 1e-4));
}

}  // namespace
}  // namespace cortado::mega_test
