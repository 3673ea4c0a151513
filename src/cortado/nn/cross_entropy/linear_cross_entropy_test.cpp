#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/nn/cross_entropy/op.h"

namespace cortado {
namespace {

Tensor plain_loss(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias, const Tensor& targets,
                  std::optional<double> softcap) {
  Tensor logits = at::matmul(hidden, weight.t());
  if (bias) logits = logits + *bias;
  if (softcap) logits = *softcap * at::tanh(logits / *softcap);
  return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Mean, -1);
}

// Loss and all gradients against autograd's, for a head of `vocabulary` tokens.
void compare(int64_t rows, int64_t vocabulary, bool with_bias, std::optional<double> softcap, int64_t chunk = 1 << 20) {
  const auto leaf = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble).requires_grad_(true); };
  const Tensor hidden = leaf({rows, 6}), weight = leaf({vocabulary, 6}), shift = leaf({vocabulary});
  const std::optional<Tensor> bias = with_bias ? std::optional<Tensor>(shift) : std::nullopt;
  Tensor targets = at::randint(0, vocabulary, {rows}, at::kLong);
  targets[1] = -1;
  std::vector<Tensor> gradients;
  const Tensor expected = plain_loss(hidden, weight, bias, targets, softcap);
  (expected * 3).backward();
  for (const Tensor& x : {hidden, weight, shift}) {
    gradients.push_back(x.grad().defined() ? x.grad().clone() : Tensor());
    const_cast<Tensor&>(x).mutable_grad().reset();
  }
  const Tensor loss = linear_cross_entropy(hidden, weight, bias, targets, softcap, chunk);
  (loss * 3).backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-12);
  size_t i = 0;
  for (const Tensor& x : {hidden, weight, shift}) {
    const Tensor& gradient = gradients[i++];
    ASSERT_EQ(gradient.defined(), x.grad().defined());
    if (gradient.defined()) {
      EXPECT_LT((gradient - x.grad()).abs().max().item<double>(), 1e-12);
    }
  }
  const at::NoGradGuard no_grad;
  EXPECT_NEAR(linear_cross_entropy(hidden, weight, bias, targets, softcap, chunk).item<double>(),
              expected.item<double>(), 1e-12);
}

TEST(LinearCrossEntropy, AgreesWithAutograd) {
  compare(5, 11, false, {});
  compare(5, 11, true, {});
  compare(5, 11, true, 1.5);
}

TEST(LinearCrossEntropy, AgreesAcrossItsChunks) { compare(13, 11, true, 2.0, 44); }  // 4 rows per chunk

TEST(LinearCrossEntropy, CountsNothingAsZero) {
  const Tensor hidden = at::randn({3, 4}).requires_grad_(true);
  const Tensor loss = linear_cross_entropy(hidden, at::randn({5, 4}), {}, at::full({3}, -1, at::kLong));
  EXPECT_EQ(loss.item<float>(), 0.0f);
  loss.backward();
  EXPECT_EQ(hidden.grad().abs().max().item<float>(), 0.0f);
}

TEST(LinearCrossEntropy, IsFloat32ForBfloat16) {
  const Tensor hidden = at::randn({3, 4}, at::kBFloat16).requires_grad_(true);
  const Tensor weight = at::randn({5, 4}, at::kBFloat16).requires_grad_(true);
  const Tensor targets = at::tensor({1, 2, 0}, at::kLong);
  const Tensor loss = linear_cross_entropy(hidden, weight, {}, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
  const Tensor exact = plain_loss(hidden.to(at::kFloat), weight.to(at::kFloat), {}, targets, {});
  EXPECT_NEAR(loss.item<float>(), exact.item<float>(), 0.05);
}

TEST(LinearCrossEntropy, RefusesShapesThatDoNotFit) {
  EXPECT_THROW(linear_cross_entropy(at::randn({3, 4}), at::randn({5, 3}), {}, at::zeros({3}, at::kLong)), InputError);
}

}  // namespace
}  // namespace cortado
