#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"

namespace cortado {
namespace {

std::shared_ptr<Mixer> hgrn2_with_bound(double bound) {
  at::manual_seed(1);
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  auto mixer = make_mixer(Json{{"mixer", "hgrn2"}, {"lower_bound", bound}}, context, "test");
  mixer->to(at::kDouble);
  return mixer;
}

Tensor state_after(Mixer& mixer, const Tensor& x) {
  SequenceState state = mixer.zero_state(1, x.options());
  mixer.forward(x, {}, &state);
  return state.at("scan_state");
}

// Gates that do not depend on x: every row of the state is the exponential moving average of the inputs at that rate.
TEST(Hgrn2, LowerBoundIsTheLeastThatIsKept) {
  const auto mixer = hgrn2_with_bound(0.5);
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({1, 70, 24}, at::kDouble);
  const Tensor values = at::linear(x, mixer->named_parameters()["i.weight"]);
  mixer->named_parameters()["f.weight"].zero_();  // σ = 1/2, f = 3/4
  Tensor mean = at::zeros({24}, at::kDouble);
  for (int64_t t = 0; t < 70; ++t) mean = 0.75 * mean + 0.25 * values[0][t];
  const Tensor rows = mean.reshape({1, 4, 1, 6}).expand({1, 4, 6, 6});
  EXPECT_CLOSE(state_after(*mixer, x), rows, 1e-12);
}

// Key and gate sum to 1, so the state is a weighted mean of the inputs.
TEST(Hgrn2, StateStaysWithinItsInputs) {
  const at::NoGradGuard no_grad;
  for (const double bound : {0.0, 0.9}) {
    const auto mixer = hgrn2_with_bound(bound);
    mixer->named_parameters()["f.weight"].mul_(20);
    const Tensor x = at::randn({1, 500, 24}, at::kDouble);
    const Tensor values = at::linear(x, mixer->named_parameters()["i.weight"]);
    EXPECT_LE(state_after(*mixer, x).abs().max().item<double>(), values.abs().max().item<double>()) << bound;
  }
}

}  // namespace
}  // namespace cortado
