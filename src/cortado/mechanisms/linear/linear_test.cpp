#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/mechanisms/linear/op.h"
#include "cortado/testing/compare.h"

namespace cortado::linear_test {
namespace {

using testing::expect_gradients_close;
using testing::gradients;
using testing::weights_like;

Tensor positive(at::IntArrayRef shape) { return (at::elu(at::randn(shape, at::kDouble)) + 1).requires_grad_(true); }

TEST(NormalizedLinear, EqualsItsDefinition) {
  at::manual_seed(1);
  for (const bool causal : {true, false}) {
    for (const double eps : {0.0, 1e-6, 0.5}) {
      const Tensor q = positive({2, 70, 3, 4}), k = positive({2, 70, 3, 4});
      const Tensor v = at::randn({2, 70, 3, 5}, at::kDouble).requires_grad_(true);
      const Tensor o = normalized_linear(q, k, v, causal, eps).o, expected = linear_reference(q, k, v, causal, eps);
      EXPECT_CLOSE(o, expected, 1e-10);
      const auto weights = weights_like({o});
      const auto got = gradients({o}, weights, {q, k, v}), wanted = gradients({expected}, weights, {q, k, v});
      expect_gradients_close(got, wanted, 1e-9);
    }
  }
}

TEST(NormalizedLinear, ContinuesFromItsStateAndSumsToOne) {
  at::manual_seed(2);
  const Tensor q = positive({1, 50, 2, 4}), k = positive({1, 50, 2, 4}), ones = at::ones({1, 50, 2, 1}, at::kDouble);
  EXPECT_CLOSE(normalized_linear(q, k, ones).o, ones, 1e-12);
  const Tensor v = at::randn({1, 50, 2, 3}, at::kDouble).requires_grad_(true);
  const Tensor whole = normalized_linear(q, k, v).o;
  const LinearResult first = normalized_linear(q.narrow(1, 0, 21), k.narrow(1, 0, 21), v.narrow(1, 0, 21));
  const LinearResult second = normalized_linear(q.narrow(1, 21, 29), k.narrow(1, 21, 29), v.narrow(1, 21, 29), true, 0,
                                                first.state, first.normalizer);
  EXPECT_CLOSE(second.o, whole.narrow(1, 21, 29), 1e-10);
  const auto weights = weights_like({second.o});
  const auto got = gradients({second.o}, weights, {q, k, v});
  const auto wanted = gradients({whole.narrow(1, 21, 29)}, weights, {q, k, v});
  expect_gradients_close(got, wanted, 1e-9);
}

TEST(NormalizedLinear, NoWeightIsZeroAndFinite) {
  const Tensor q = at::zeros({1, 4, 1, 2}, at::kDouble).requires_grad_(true), k = at::ones({1, 4, 1, 2}, at::kDouble);
  const Tensor o = normalized_linear(q, k, at::randn({1, 4, 1, 3}, at::kDouble)).o;
  EXPECT_EQ(o.abs().max().item<double>(), 0);
  EXPECT_TRUE(gradients({o}, weights_like({o}), {q})[0].isfinite().all().item<bool>());
}

TEST(NormalizedLinear, RefusesHalfAState) {
  const Tensor x = at::ones({1, 4, 1, 2});
  EXPECT_THROW(normalized_linear(x, x, x, true, 0, at::zeros({1, 1, 2, 2})), InputError);
}

}  // namespace
}  // namespace cortado::linear_test
