#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"

namespace cortado::lightning_test {
namespace {

// The decay per head: what is left of a state of ones after one token whose key is zero.
std::vector<double> decays(const std::string& settings, int64_t layer, int64_t layers) {
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  context.layer = layer;
  context.layers = layers;
  auto mixer = make_mixer(parse_json(settings, "test"), context, "test");
  const at::NoGradGuard no_grad;
  mixer->to(at::kDouble);
  const Tensor x = at::zeros({1, 1, 24}, at::kDouble);
  SequenceState state = mixer->zero_state(1, x.options());
  state.at("scan_state").fill_(1);
  mixer->forward(x, {}, &state);
  std::vector<double> left;
  for (int64_t head = 0; head < 4; ++head) left.push_back(state.at("scan_state")[0][head][0][0].item<double>());
  return left;
}

TEST(FixedDecays, AreThePapers) {
  const auto retention = decays(R"({"mixer": "retention"})", 0, 1);
  const auto fla = decays(R"({"mixer": "lightning", "slopes": "fla"})", 1, 4);
  const auto minimax = decays(R"({"mixer": "lightning", "slopes": "minimax"})", 0, 4);
  const auto last = decays(R"({"mixer": "lightning"})", 3, 4);
  for (int h = 0; h < 4; ++h) {
    EXPECT_NEAR(retention[h], 1 - std::pow(2.0, -5 - h), 1e-14);
    EXPECT_NEAR(fla[h], std::exp(-2 * 0.75 * h), 1e-14);
    EXPECT_NEAR(minimax[h], std::exp(-std::pow(0.25, h + 1) * (1 + 1e-5)), 1e-14);
    EXPECT_NEAR(last[h], 1, 1e-4);  // the deepest layer forgets almost nothing
  }
}

}  // namespace
}  // namespace cortado::lightning_test
