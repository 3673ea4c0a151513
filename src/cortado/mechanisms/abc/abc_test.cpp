#include <gtest/gtest.h>

#include "cortado/mechanisms/abc/op.h"
#include "cortado/mechanisms/gated_slot/op.h"
#include "cortado/testing/compare.h"

namespace cortado::abc_test {
namespace {

Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

// A common offset of a slot's logits changes nothing, in float32 over 4096 tokens with offsets up to 1e4.
TEST(Abc, OffsetsDoNotMatter) {
  at::manual_seed(1);
  const Tensor q = at::randn({1, 4096, 1, 4}), k = at::randn({1, 4096, 1, 4}), v = at::randn({1, 4096, 1, 3});
  const Tensor s = (at::randn({1, 4096, 1, 5}) * 4).round() / 4;  // multiples of 1/4 stay exact in float32 next to 1e4
  const Tensor plain = abc(q, k, v, s).o;
  for (const double offset : {100.0, 1e4, -1e4}) {
    EXPECT_CLOSE(abc(q, k, v, s + offset).o, plain, 5e-6) << offset;
    EXPECT_CLOSE(abc(q, k, at::ones_like(v), s + offset).o, at::ones_like(v), 2e-6) << offset;
  }
}

// With constant logits every slot is the mean of all tokens so far, and any query reads that mean.
TEST(Abc, ConstantLogitsGiveTheMean) {
  at::manual_seed(2);
  const Tensor q = normal({2, 70, 2, 4}), k = normal({2, 70, 2, 4}), v = normal({2, 70, 2, 3});
  const Tensor count = at::arange(1, 71, at::kDouble).view({1, 70, 1, 1});
  EXPECT_CLOSE(abc(q, k, v, at::full({2, 70, 2, 5}, 3.0, at::kDouble)).o, v.cumsum(1) / count, 1e-12);
}

// Slots whose logits are all -inf hold zeros. No output and no gradient is NaN.
TEST(Abc, EmptySlotsAreZero) {
  at::manual_seed(3);
  const Tensor q = normal({1, 40, 1, 4}).requires_grad_(true), k = normal({1, 40, 1, 4}), v = normal({1, 40, 1, 3});
  Tensor s = normal({1, 40, 1, 4});
  s.select(3, 1).fill_(-kInfinity);
  s.select(3, 2).slice(1, 0, 20).fill_(-kInfinity);
  const Tensor o = abc(q, k, v, s).o;
  EXPECT_CLOSE(o, abc_reference(q, k, v, s, 0.5), 1e-12);
  EXPECT_TRUE(testing::gradients({o}, {at::ones_like(o)}, {q})[0].isfinite().all().item<bool>());
}

TEST(Slots, HeadsBroadcast) {
  at::manual_seed(4);
  const Tensor q = normal({1, 20, 4, 3}), k = normal({1, 20, 1, 3}), v = normal({1, 20, 2, 5}),
               s = normal({1, 20, 2, 6});
  const Tensor g = -normal({1, 20, 1, 6}).abs();
  const auto wide = [](const Tensor& x) { return x.repeat_interleave(4 / x.size(2), 2); };
  const AbcResult a = abc(q, k, v, s, 0.7);
  EXPECT_CLOSE(a.o, abc_reference(q, wide(k), wide(v), wide(s), 0.7), 1e-12);
  EXPECT_EQ(a.key_state.sizes(), (at::IntArrayRef{1, 2, 6, 3}));
  EXPECT_EQ(a.normalizer.sizes(), (at::IntArrayRef{1, 2, 6}));
  const SlotResult b = gated_slot(q, k, v, s, g);
  EXPECT_CLOSE(b.o, gated_slot_reference(q, wide(k), wide(v), wide(s), wide(g), 1 / std::sqrt(3.0)), 1e-12);
  EXPECT_EQ(b.value_state.sizes(), (at::IntArrayRef{1, 2, 6, 5}));
}

TEST(Slots, RefuseWhatDoesNotFit) {
  const Tensor x = at::zeros({1, 4, 2, 3}), s = at::zeros({1, 4, 2, 5});
  EXPECT_THROW(abc(x, x, at::zeros({1, 5, 2, 3}), s), InputError);
  EXPECT_THROW(abc(x, x, x, s, {}, {at::zeros({1, 2, 5, 3}), {}, {}, {}}), InputError);
  EXPECT_THROW(gated_slot(x, x, x, s, at::zeros({1, 4, 2, 4})), InputError);
  EXPECT_THROW(gated_slot(x, x, x, s, s, {}, at::zeros({1, 2, 5, 3})), InputError);
}

}  // namespace
}  // namespace cortado::abc_test
