#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "cortado/mechanisms/mamba/op.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

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

// Segments of 1, 7 and all tokens; gradients pass from one to the next through the states.
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

// Outputs and gradients, including those of the final state, of float32 tensors with awkward strides.
std::vector<Tensor> results(const Case& given, at::ScalarType type, bool awkward) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : given.leaves()) {
    const Tensor narrow = x.detach().to(at::kFloat).to(type);
    const auto layout = static_cast<int64_t>(leaves.size() % 3);
    leaves.push_back((awkward && x.dim() == 3 ? testing::awkward(narrow, layout) : narrow.clone()).requires_grad_());
  }
  const auto [y, last] = selective_scan({leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]}, leaves[5], {});
  at::manual_seed(9);
  std::vector<Tensor> weights;
  for (const Tensor& w : testing::weights_like({y.to(at::kDouble), last.to(at::kDouble)}))
    weights.push_back(w.to(type));
  std::vector<Tensor> all{y.detach(), last.detach()};
  for (const Tensor& x : testing::gradients({y, last}, weights, leaves)) all.push_back(x);
  return all;
}

TEST(SelectiveScan, ByTheKernelOnEveryInstructionSet) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  const char* names[] = {"y", "last", "dx", "dstep", "da", "db", "dc", "dstart"};
  for (const auto& [tokens, channels, states] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {31, 7, 3}, {32, 16, 16}, {33, 33, 17}, {100, 130, 4}, {65, 300, 2}}) {
    Case given = selective_case(2, tokens, channels, states);
    given.start = at::randn({2, channels, states}, at::kDouble);
    const auto right = results(given, at::kDouble, false);
    for (const std::string& isa : available_isas()) {
      select_isa(isa);
      const auto got = results(given, at::kFloat, true);
      for (size_t i = 0; i < right.size(); ++i) {
        EXPECT_LE(testing::relative_error(got[i], right[i]), 2e-5) << names[i] << " " << isa << " E " << channels;
      }
    }
  }
}

TEST(SelectiveScan, TheNumberOfThreadsChangesNothing) {
  const Case given = selective_case(2, 200, 150, 5);
  testing::expect_any_threads_the_same([&] { return results(given, at::kFloat, false); });
}

// A second derivative is an error.
TEST(SelectiveScan, DifferentiatesOnce) {
  const Case all = selective_case(1, 5, 3, 2);
  const Tensor y = std::get<0>(selective_scan(all.in, all.start, {}));
  const std::string error = testing::error_of([&] { torch::autograd::grad({y.sum()}, {all.in.x}, {}, true, true); });
  EXPECT_NE(error.find("differentiating twice is not supported"), std::string::npos) << error;
}

// Initially A = -1 ... -N, and Δ lies in [0.001, 0.1].
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
