#include <gtest/gtest.h>

#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"

namespace cortado::gla_test {
namespace {

std::shared_ptr<Mixer> gla_with_bias(double bias) {
  at::manual_seed(1);
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  auto mixer = make_mixer(parse_json(R"({"mixer": "gla"})", "test"), context, "test");
  const at::NoGradGuard no_grad;
  mixer->named_parameters()["decay_up.bias"].fill_(bias);
  mixer->to(at::kDouble);
  return mixer;
}

// Everything is forgotten at each step: every token sees only itself.
TEST(Gla, StrongestDecayKeepsOnlyTheCurrentToken) {
  const auto mixer = gla_with_bias(-1e5);
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({1, 70, 24}, at::kDouble), y = mixer->forward(x, {}, nullptr);
  for (const int64_t t : {0, 33, 69}) {
    EXPECT_CLOSE(y.narrow(1, t, 1), mixer->forward(x.narrow(1, t, 1), {}, nullptr), 1e-12);
  }
}

// Nothing is forgotten: this is linear attention, for which the order of past tokens does not matter.
TEST(Gla, NoDecayForgetsTheOrderOfThePast) {
  const auto mixer = gla_with_bias(1e5);
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({1, 70, 24}, at::kDouble);
  const Tensor mixed = at::cat({x.narrow(1, 0, 69).flip(1), x.narrow(1, 69, 1)}, 1);
  EXPECT_CLOSE(mixer->forward(mixed, {}, nullptr).select(1, 69), mixer->forward(x, {}, nullptr).select(1, 69), 1e-10);
}

}  // namespace
}  // namespace cortado::gla_test
