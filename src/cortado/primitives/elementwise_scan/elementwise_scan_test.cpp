#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/kernels/kernel.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/kernels.h"

namespace cortado::elementwise_scan_test {
namespace {

using testing::expect_gradients_close;
using testing::gradients;
using testing::weights_like;

struct Case {
  int64_t batch, tokens, dim;
  bool reverse, initial;
  std::vector<int64_t> bounds;  // packed when not empty
};

struct Inputs {
  Tensor log_a, b;
  std::optional<Tensor> initial, bounds;
};

Inputs make_inputs(const Case& c, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  Inputs in;
  in.log_a = (c10::isComplexType(type) ? at::randn({c.batch, c.tokens, c.dim}, options) * 0.3 - 0.4
                                       : -at::rand({c.batch, c.tokens, c.dim}, options).pow(3) * 3);
  in.b = at::randn({c.batch, c.tokens, c.dim}, options);
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  if (c.initial) in.initial = at::randn({rows, c.dim}, options).requires_grad_(true);
  if (!c.bounds.empty()) in.bounds = at::tensor(c.bounds, at::kLong);
  in.log_a.requires_grad_(true);
  in.b.requires_grad_(true);
  return in;
}

std::vector<Tensor> leaves(const Inputs& in) {
  std::vector<Tensor> all = {in.log_a, in.b};
  if (in.initial) all.push_back(*in.initial);
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t tokens : {1, 2, 15, 16, 17, 63, 64, 65, 100, 257, 1000}) {
    all.push_back({2, tokens, 3, tokens % 2 == 0, tokens % 3 != 0, {}});
    all.push_back({1, tokens, 7, tokens % 2 != 0, true, {}});
  }
  all.push_back({2, 0, 3, false, true, {}});
  all.push_back({1, 100, 5, false, true, {0, 0, 1, 40, 79, 79, 100}});
  all.push_back({1, 100, 5, true, true, {0, 0, 1, 40, 79, 79, 100}});
  all.push_back({1, 60, 5, false, false, {0, 20, 40, 60}});
  all.push_back({1, 0, 2, false, true, {0, 0, 0}});
  return all;
}

void compare_with_reference(const Case& c, at::ScalarType type, double tolerance) {
  SCOPED_TRACE(concat("T=", c.tokens, " reverse=", c.reverse, " packed=", !c.bounds.empty()));
  const Inputs in = make_inputs(c, type);
  auto [h, last] = elementwise_scan(in.log_a, in.b, in.initial, in.bounds, c.reverse);
  auto [h_ref, last_ref] = elementwise_scan_reference(in.log_a, in.b, in.initial, in.bounds, c.reverse);
  EXPECT_CLOSE(h, h_ref, tolerance);
  EXPECT_CLOSE(last, last_ref, tolerance);
  const auto weights = weights_like({h, last});
  const auto actual = gradients({h, last}, weights, leaves(in));
  const auto expected = gradients({h_ref, last_ref}, weights, leaves(in));
  expect_gradients_close(actual, expected, tolerance);
}

TEST(ElementwiseScan, EqualsItsDefinition) {
  at::manual_seed(1);
  for (const auto& c : cases()) compare_with_reference(c, at::kDouble, 1e-12);
}

// Every vector's tail, on every instruction set, on memory that lies awkwardly and with results that begin as NaN.
TEST(ElementwiseScan, KernelEqualsTheDefinition) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  at::manual_seed(6);
  int64_t layout = 0;
  for (const int64_t dim : {1, 7, 8, 16, 17, 31, 64, 65, 128}) {
    for (Case c : cases()) {
      if (c.tokens > 110) continue;
      c.dim = dim;
      const Inputs exact = make_inputs(c, at::kDouble);
      const auto wanted = elementwise_scan_reference(exact.log_a, exact.b, exact.initial, exact.bounds, c.reverse);
      const auto weights = weights_like({std::get<0>(wanted), std::get<1>(wanted)});
      const auto expected = gradients({std::get<0>(wanted), std::get<1>(wanted)}, weights, leaves(exact));
      for (const auto& isa : available_isas()) {
        SCOPED_TRACE(concat(isa, " T=", c.tokens, " D=", dim, " reverse=", c.reverse, " packed=", !c.bounds.empty()));
        select_isa(isa);
        const auto leaf = [&](const Tensor& x) {
          return testing::awkward(x.detach().to(at::kFloat), layout++ % testing::kAwkward).detach().requires_grad_();
        };
        Inputs in{leaf(exact.log_a), leaf(exact.b), std::nullopt, exact.bounds};
        if (exact.initial) in.initial = leaf(*exact.initial);
        auto [h, last] = elementwise_scan(in.log_a, in.b, in.initial, in.bounds, c.reverse);
        EXPECT_CLOSE(h, std::get<0>(wanted), 2e-6);
        EXPECT_CLOSE(last, std::get<1>(wanted), 2e-6);
        const std::vector<Tensor> floats = {weights[0].to(at::kFloat), weights[1].to(at::kFloat)};
        expect_gradients_close(gradients({h, last}, floats, leaves(in)), expected, 1e-5);
      }
    }
  }
}

// Large results use non-temporal stores; with half the channels they do not.
TEST(ElementwiseScan, LargeResultsEqualSmallOnes) {
  at::manual_seed(9);
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  const int64_t tokens = kernels::kPastCaches / 128 + 1000;
  const Tensor log_a = -at::rand({1, tokens, 128}), b = at::randn({1, tokens, 128});
  const auto run_half = [&](int64_t first, int64_t count) {
    const Tensor leaf_a = log_a.narrow(2, first, count).detach().requires_grad_();
    const Tensor leaf_b = b.narrow(2, first, count).detach().requires_grad_();
    const Tensor h = std::get<0>(elementwise_scan(leaf_a, leaf_b));
    const auto grads = torch::autograd::grad({h}, {leaf_a, leaf_b}, {b.narrow(2, first, count)});
    return at::stack({h.detach(), grads[0], grads[1]});
  };
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    EXPECT_TRUE(run_half(0, 128).equal(at::cat({run_half(0, 64), run_half(64, 64)}, -1))) << isa;
  }
}

TEST(ElementwiseScan, TheNumberOfThreadsChangesNothing) {
  at::manual_seed(11);
  const Tensor log_a = -at::rand({1, 2100, 33}), b = at::randn({1, 2100, 33});
  testing::expect_any_threads_the_same([&] {
    const Tensor leaf_a = log_a.detach().requires_grad_(), leaf_b = b.detach().requires_grad_();
    auto [h, last] = elementwise_scan(leaf_a, leaf_b);
    const auto grads = torch::autograd::grad({h, last}, {leaf_a, leaf_b}, {b, at::ones_like(last)});
    return std::vector<Tensor>{h, last, grads[0], grads[1]};
  });
}

TEST(ElementwiseScan, ForgetsEverythingAtMinusInfinity) {
  const testing::AnyIsa restore;
  at::manual_seed(8);
  const Tensor log_a =
      at::where(at::rand({1, 200, 5}) < 0.2, at::full({}, -kInfinity), -at::rand({1, 200, 5})).requires_grad_();
  const Tensor b = at::randn({1, 200, 5});
  const Tensor exact = std::get<0>(elementwise_scan_reference(log_a.detach().to(at::kDouble), b.to(at::kDouble)));
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    const Tensor h = std::get<0>(elementwise_scan(log_a, b));
    EXPECT_CLOSE(h, exact, 1e-6) << isa;
    const Tensor grad = torch::autograd::grad({h.sum()}, {log_a})[0];
    EXPECT_TRUE(grad.index({log_a == -kInfinity}).eq(0).all().item<bool>()) << isa;
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << isa;
  }
}

TEST(ElementwiseScan, ComplexEqualsItsDefinition) {
  at::manual_seed(2);
  for (const auto& c : cases()) compare_with_reference(c, at::kComplexDouble, 1e-9);
}

TEST(ElementwiseScan, Float32StaysNearFloat64) {
  at::manual_seed(3);
  for (const double gate : {-1e-4, -0.1, -10.0}) {
    const Tensor log_a = at::full({2, 4096, 3}, gate, at::kDouble), b = at::randn({2, 4096, 3}, at::kDouble);
    const Tensor exact = std::get<0>(elementwise_scan(log_a, b));
    EXPECT_CLOSE(std::get<0>(elementwise_scan(log_a.to(at::kFloat), b.to(at::kFloat))), exact, 1e-5) << gate;
  }
}

TEST(ElementwiseScan, ShortTypesComputeWide) {
  at::manual_seed(4);
  const Tensor log_a = -at::rand({2, 300, 4}) * 0.01;
  const Tensor b = at::randn({2, 300, 4}).to(at::kBFloat16);
  auto [h, last] = elementwise_scan(log_a, b);
  EXPECT_EQ(h.scalar_type(), at::kBFloat16);
  EXPECT_EQ(last.scalar_type(), at::kFloat);
  EXPECT_CLOSE(h, std::get<0>(elementwise_scan(log_a, b.to(at::kFloat))), 1.0 / 256);
}

TEST(ElementwiseScan, ForgettingEverythingCutsTheSequence) {
  Tensor log_a = at::zeros({1, 40, 2}, at::kDouble);
  log_a.select(1, 25).fill_(-INFINITY);
  log_a.requires_grad_(true);
  const Tensor b = at::randn({1, 40, 2}, at::kDouble).requires_grad_(true);
  auto [h, last] = elementwise_scan(log_a, b);
  EXPECT_CLOSE(h.select(1, 39), b.narrow(1, 25, 15).sum(1), 1e-14);
  const auto grads = gradients({last}, {at::ones_like(last)}, {log_a, b});
  EXPECT_TRUE(grads[0].isfinite().all().item<bool>());
  EXPECT_EQ(grads[0].select(1, 25).abs().max().item<double>(), 0);
  EXPECT_EQ(grads[1].narrow(1, 0, 25).abs().max().item<double>(), 0);
}

TEST(RunningMax, FollowsItsDefinitionAcrossCallsAndSequences) {
  at::manual_seed(5);
  const Tensor x = at::randn({2, 50, 3, 4});
  auto [m, before, last] = running_max(x);
  EXPECT_TRUE(at::equal(m, std::get<0>(x.cummax(1))));
  EXPECT_TRUE(at::equal(before.narrow(1, 1, 49), m.narrow(1, 0, 49)));
  EXPECT_TRUE(before.select(1, 0).eq(-INFINITY).all().item<bool>());
  auto [m1, before1, last1] = running_max(x.narrow(1, 0, 23));
  auto [m2, before2, last2] = running_max(x.narrow(1, 23, 27), last1);
  EXPECT_TRUE(at::equal(at::cat({m1, m2}, 1), m));
  EXPECT_TRUE(at::equal(last2, last));
  const Tensor packed = x.narrow(0, 0, 1);
  auto [mp, bp, lp] = running_max(packed, {}, at::tensor({0, 10, 10, 50}, at::kInt));
  EXPECT_TRUE(at::equal(mp.narrow(1, 10, 40), std::get<0>(packed.narrow(1, 10, 40).cummax(1))));
  EXPECT_TRUE(lp.select(0, 1).eq(-INFINITY).all().item<bool>());
}

TEST(RunningMax, LosesItsDecayAtEveryToken) {
  at::manual_seed(6);
  const Tensor x = at::randn({2, 50, 1, 4}, at::kDouble), decay = at::rand({1, 4}, at::kDouble);
  const auto [m, before, last] = running_max(x, {}, {}, decay);
  Tensor expected = x.select(1, 0);
  for (int64_t t = 1; t < 50; ++t) {
    EXPECT_CLOSE(before.select(1, t), expected, 1e-12);
    expected = at::maximum(expected - decay, x.select(1, t));
    EXPECT_CLOSE(m.select(1, t), expected, 1e-12);
  }
  EXPECT_CLOSE(last, expected, 1e-12);
  EXPECT_CLOSE(std::get<0>(running_max(x.narrow(1, 23, 27), m.select(1, 22), {}, decay)), m.narrow(1, 23, 27), 1e-12);
}

TEST(ElementwiseScan, RefusesWhatDoesNotFit) {
  EXPECT_THROW(elementwise_scan(at::zeros({1, 2, 3}), at::zeros({1, 2, 4})), InputError);
  EXPECT_THROW(elementwise_scan(at::zeros({1, 2, 3}), at::zeros({1, 2, 3}), at::zeros({2, 3})), InputError);
  EXPECT_THROW(elementwise_scan(at::zeros({2, 2, 3}), at::zeros({2, 2, 3}), {}, at::tensor({0, 2}, at::kInt)),
               InputError);
  EXPECT_THROW(elementwise_scan(at::zeros({1, 4, 3}), at::zeros({1, 4, 3}), {}, at::tensor({0, 3, 2, 4}, at::kInt)),
               InputError);
}

}  // namespace
}  // namespace cortado::elementwise_scan_test
