#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/mechanisms/latte/mixer.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/parts.h"

namespace cortado::latte_test {
namespace {

using testing::expect_gradients_close;
using testing::gradients;
using testing::weights_like;

// p(s|t), [T, T]: if v_s is the s-th unit vector, o_t is the row of attention weights.
Tensor attention_weights(const Tensor& query_logits, const Tensor& key_logits, bool causal) {
  const int64_t tokens = query_logits.size(1);
  const Tensor units = at::eye(tokens, key_logits.options()).reshape({1, tokens, 1, tokens});
  return latte(query_logits, key_logits, units, causal).o.reshape({tokens, tokens});
}

TEST(Latte, WeightsSumToOne) {
  at::manual_seed(1);
  for (const double scale : {1.0, 100.0, 1e4}) {
    const Tensor q = at::randn({1, 130, 1, 6}) * scale, k = at::randn({1, 130, 1, 6}) * scale;
    for (const bool causal : {true, false}) {
      EXPECT_CLOSE(attention_weights(q, k, causal).sum(1), at::ones({130}), 1e-6) << scale;
    }
  }
}

// The paper's example of an overflow, θ = [1, 10, 1000], and its reverse; then huge logits of either sign.
TEST(Latte, ExactAtExtremeLogits) {
  const std::vector<std::vector<double>> lists = {
      {1, 10, 1000}, {1000, 10, 1}, {1e4, -1e4, 1e4, 0}, {-1e4, -1e4, -1e4}, {0, 0, 0, 1e4, 1e4}};
  for (const auto& list : lists) {
    const int64_t tokens = static_cast<int64_t>(list.size());
    const Tensor theta = at::tensor(list, at::kDouble);
    const Tensor k = theta.to(at::kFloat).reshape({1, tokens, 1, 1});
    const Tensor weights = attention_weights(at::zeros({1, tokens, 1, 1}), k, true);
    for (int64_t t = 0; t < tokens; ++t) {
      const Tensor expected = at::softmax(theta.narrow(0, 0, t + 1), 0);
      EXPECT_CLOSE(weights.select(0, t).narrow(0, 0, t + 1), expected, 1e-6) << "t = " << t;
    }
  }
}

// A common offset of all logits changes nothing, in float32 over 4096 tokens.
TEST(Latte, OffsetsDoNotMatter) {
  at::manual_seed(2);
  const Tensor q = at::randn({1, 4096, 1, 4});
  // Multiples of 1/4 stay exact in float32 next to 1e4, so that only the arithmetic can differ, not the input.
  const Tensor k = (at::randn({1, 4096, 1, 4}) * 4).round() / 4;
  const Tensor v = at::ones({1, 4096, 1, 1}), values = at::randn({1, 4096, 1, 3});
  const Tensor plain = latte(q, k, values).o;
  for (const double offset : {100.0, -100.0, 1e4, -1e4}) {
    EXPECT_CLOSE(latte(q, k + offset, v).o, v, 2e-6) << offset;
    EXPECT_CLOSE(latte(q, k + offset, values).o, plain, 2e-6) << offset;
  }
}

TEST(Latte, NothingSeenIsZero) {
  Tensor k = at::full({1, 5, 1, 2}, -INFINITY);
  k.select(1, 3).fill_(2.0);
  k.requires_grad_(true);
  const Tensor v = at::randn({1, 5, 1, 3}).requires_grad_(true);
  const LatteResult result = latte(at::zeros({1, 5, 1, 2}), k, v);
  EXPECT_EQ(result.o.narrow(1, 0, 3).abs().max().item<double>(), 0);
  EXPECT_CLOSE(result.o.select(1, 4), v.select(1, 3), 1e-6);
  for (const auto& gradient : gradients({result.o}, weights_like({result.o}), {k, v})) {
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  }
}

// Continuing from (state, normalizer, maximum) equals the whole sequence, gradients included.
TEST(Latte, ContinuesFromItsState) {
  at::manual_seed(3);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor q = at::randn({2, 70, 2, 5}, options).requires_grad_(true);
  const Tensor k = (at::randn({2, 70, 2, 5}, options) * 5).requires_grad_(true);
  const Tensor v = at::randn({2, 70, 2, 3}, options).requires_grad_(true);
  const LatteResult whole = latte(q, k, v);
  const LatteResult first = latte(q.narrow(1, 0, 33), k.narrow(1, 0, 33), v.narrow(1, 0, 33));
  const LatteResult second = latte(q.narrow(1, 33, 37), k.narrow(1, 33, 37), v.narrow(1, 33, 37), true,
                                   {first.state, first.normalizer, first.maximum});
  const auto weights = weights_like({second.o});
  EXPECT_CLOSE(second.o, whole.o.narrow(1, 33, 37), 1e-10);
  EXPECT_CLOSE(second.state, whole.state, 1e-10);
  EXPECT_CLOSE(second.normalizer, whole.normalizer, 1e-10);
  const auto got = gradients({second.o}, weights, {q, k, v});
  const auto expected = gradients({whole.o.narrow(1, 33, 37)}, weights, {q, k, v});
  expect_gradients_close(got, expected, 1e-10);
}

TEST(Latte, HeadsBroadcast) {
  at::manual_seed(4);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor q = at::randn({1, 20, 4, 3}, options), k = at::randn({1, 20, 1, 3}, options);
  const Tensor v = at::randn({1, 20, 2, 5}, options);
  const Tensor expected =
      latte_reference(at::softmax(q, -1), k.repeat_interleave(4, 2), v.repeat_interleave(2, 2), true);
  const LatteResult result = latte(q, k, v);
  EXPECT_CLOSE(result.o, expected, 1e-10);
  EXPECT_EQ(result.state.sizes(), (at::IntArrayRef{1, 2, 3, 5}));
  EXPECT_CLOSE(latte(q, k, v, false).o,
               latte_reference(at::softmax(q, -1), k.repeat_interleave(4, 2), v.repeat_interleave(2, 2), false), 1e-10);
}

// The composition of a part, computed in pieces of 64 tokens, equals the final state of the scan.
TEST(Latte, PartsCompose) {
  at::manual_seed(5);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const auto learned = [&](at::IntArrayRef sizes) { return at::randn(sizes, options).requires_grad_(); };
  const int64_t heads = 2048;
  const Tensor theta = learned({1, 67, heads, 8}), v = learned({1, 67, heads, 2});
  const LatteState start = {learned({1, heads, 8, 2}), learned({1, heads, 8}), at::randn({1, heads, 8}, options)};
  const LatteResult whole = latte(theta, theta, v, true, start);
  const LatteState part = latte_before_part(theta, v, start, testing::MadeOfStart());
  testing::expect_same({*part.state, *part.normalizer}, {whole.state, whole.normalizer},
                       {theta, v, *start.state, *start.normalizer});
}

TEST(Latte, RefusesWhatDoesNotFit) {
  const Tensor logits = at::zeros({1, 4, 2, 3}), v = at::zeros({1, 4, 2, 5});
  EXPECT_THROW(latte(logits, at::zeros({1, 4, 2, 4}), v), InputError);
  EXPECT_THROW(latte(logits, logits, at::zeros({1, 5, 2, 5})), InputError);
  EXPECT_THROW(latte(logits, logits, v, true, {at::zeros({1, 2, 3, 5}), {}, {}}), InputError);
  EXPECT_THROW(latte(logits, logits, v, false, {at::zeros({1, 2, 3, 5}), at::zeros({1, 2, 3}), at::zeros({1, 2, 3})}),
               InputError);
}

}  // namespace
}  // namespace cortado::latte_test
