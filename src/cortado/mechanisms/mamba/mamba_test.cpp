#include <gtest/gtest.h>

#include "cortado/mechanisms/mamba/scan.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado::mamba_test {
namespace {

struct Case {
  SelectiveScan in;
  Tensor start;
  std::vector<Tensor> leaves() const { return {in.x, in.step, in.a, in.b, in.c, start}; }
};

Case selective_case(int64_t rows, int64_t tokens, int64_t channels, int64_t states) {
  at::manual_seed(4);
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  Case all{{random({rows, tokens, channels}), random({rows, tokens, channels}).exp(), -random({channels, states}).exp(),
            random({rows, tokens, states}), random({rows, tokens, states})},
           at::zeros({rows, channels, states}, at::kDouble)};
  for (Tensor x : all.leaves()) x.requires_grad_();
  return all;
}

// Segments of 1, 7 and all tokens: their gradients join through the states between them.
TEST(SelectiveScan, IsTheSameInSegments) {
  const Case all = selective_case(2, 40, 3, 4);
  const Tensor expected = selective_scan_reference(all.in);
  const auto weights = testing::weights_like({expected});
  const std::vector<Tensor> leaves = {all.in.x, all.in.step, all.in.a, all.in.b, all.in.c};
  const auto wanted = testing::gradients({expected}, weights, leaves);
  for (const int64_t tokens : {1, 7, 100}) {
    const Tensor y = std::get<0>(selective_scan(all.in, all.start, {}, tokens * 2 * 3 * 4));
    EXPECT_CLOSE(y, expected, 1e-10);
    const auto got = testing::gradients({y}, weights, leaves);
    testing::expect_gradients_close(got, wanted, 1e-9, {"x", "step", "a", "b", "c"});
  }
}

// A second derivative is refused, not wrong.
TEST(SelectiveScan, DifferentiatesOnce) {
  const Case all = selective_case(1, 5, 3, 2);
  const Tensor y = std::get<0>(selective_scan(all.in, all.start, {}));
  const std::string error = testing::error_of([&] { torch::autograd::grad({y.sum()}, {all.in.x}, {}, true, true); });
  EXPECT_NE(error.find("differentiating twice is not supported"), std::string::npos) << error;
}

// A starts at -1 ... -N, Δ in [0.001, 0.1].
TEST(Mamba, StartsAsThePaperDoes) {
  at::manual_seed(5);
  MixerContext context;
  context.dim = 64;
  auto parameters = make_mixer(parse_json(R"({"mixer": "mamba"})", "test"), context, "test")->named_parameters();
  EXPECT_CLOSE(parameters["a_log"].exp()[17], at::arange(1, 17, at::kFloat), 1e-6);
  const Tensor step = at::softplus(parameters["step_bias"]);
  EXPECT_GE(step.min().item<double>(), 0.00099);
  EXPECT_LE(step.max().item<double>(), 0.1001);
  EXPECT_NEAR(step.log().mean().item<double>(), std::log(0.01), 0.4);
  EXPECT_EQ(parameters["select.weight"].sizes(), (at::IntArrayRef{4 + 32, 128}));
}

}  // namespace
}  // namespace cortado::mamba_test
