#include <gtest/gtest.h>

#include <numbers>

#include "cortado/mechanisms/blurry_window/op.h"
#include "cortado/primitives/window_attention/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado::blurry_window_test {
namespace {

struct Inputs {
  Tensor q, k, v;
};

Inputs random_inputs(int64_t tokens) {
  at::manual_seed(tokens);
  const auto normal = [&](int64_t width) { return at::randn({2, tokens, 2, width}, at::kDouble).requires_grad_(true); };
  return {normal(4), normal(4), normal(3)};
}

void expect_same(const Inputs& in, const Tensor& got, const Tensor& right, double tolerance = 1e-10) {
  EXPECT_CLOSE(got, right, tolerance);
  const auto weights = testing::weights_like({right});
  testing::expect_gradients_close(testing::gradients({got}, weights, {in.q, in.k, in.v}),
                                  testing::gradients({right}, weights, {in.q, in.k, in.v}), tolerance);
}

TEST(BlurryWindow, IsASlidingWindowAtResolutionOneWithDecay) {
  for (const int64_t window : {1, 3, 9, 33}) {
    const Inputs in = random_inputs(120);
    const Tensor right = std::get<0>(window_attention_reference(in.q, in.k, in.v, {.window = window}));
    expect_same(in, blurry_window(in.q, in.k, in.v, {.sizes = {window, window}}).o, right);
  }
}

TEST(BlurryWindow, IsFullAttentionWithinOnePeriod) {
  const Inputs in = random_inputs(33);
  const Tensor right = std::get<0>(window_attention_reference(in.q, in.k, in.v));
  for (const bool decay : {true, false}) {
    expect_same(in, blurry_window(in.q, in.k, in.v, {.sizes = {33, 33}, .decay = decay}).o, right);
  }
}

// At integer resolutions with decay, a visible slot was overwritten once (w = 1), and its weights have summed to one
// since then.
TEST(BlurryWindow, OnesGiveOnesWithDecay) {
  for (const BlurrySizes& sizes : {BlurrySizes{3, 6}, {5, 10}, {33, 66}, {7, 42}}) {
    const Inputs in = random_inputs(200);
    const Tensor ones = at::ones_like(in.v);
    EXPECT_CLOSE(blurry_window(in.q, in.k, ones, {.sizes = sizes}).o, ones, 1e-12);
  }
}

// eq. 5-13: C_m and Z_m rotate by ωm per step and k_t is added to C. Slot n reads the token of nP/N steps ago from
// them.
Tensor ssm_form(const Inputs& in, const BlurrySizes& sizes) {
  const int64_t n = sizes.slots, modes = (n - 1) / 2;
  const double period = static_cast<double>(sizes.period), slots = static_cast<double>(n);
  const Tensor mode = at::arange(modes + 1, at::kDouble), angle = mode * (2 * std::numbers::pi / period);
  const Tensor delay = at::arange(n, at::kDouble) * (period / slots);
  const Tensor weight = at::full({modes + 1}, 2 / slots, at::kDouble);
  weight.select(0, 0).fill_(1 / slots);
  const Tensor a = weight * (delay.unsqueeze(1) * angle).cos(),
               b = weight * (delay.unsqueeze(1) * angle).sin();  // [N,M+1]
  const Tensor c = angle.cos().unsqueeze(1), s = angle.sin().unsqueeze(1);
  struct Modes {
    Tensor cosine, sine;  // [B,H,M+1,*]
  };
  const auto rotate = [&](const Modes& old, const Tensor& x) {
    return Modes{old.cosine * c - old.sine * s + x.unsqueeze(2), old.cosine * s + old.sine * c};
  };
  const Tensor nothing = at::zeros({1}, at::kDouble);
  Modes keys{nothing, nothing}, values{nothing, nothing};
  std::vector<Tensor> o;
  for (int64_t t = 0; t < in.q.size(1); ++t) {
    keys = rotate(keys, in.k.select(1, t));
    values = rotate(values, in.v.select(1, t));
    const auto read = [&](const Modes& m) { return at::matmul(a, m.cosine) + at::matmul(b, m.sine); };
    const Tensor scores = at::matmul(read(keys), in.q.select(1, t).unsqueeze(3)) * 0.5;
    const Tensor hidden = (delay > static_cast<double>(t) + 1e-9).unsqueeze(1);
    o.push_back((at::softmax(scores.masked_fill(hidden, -kInfinity), 2) * read(values)).sum(2));
  }
  return at::stack(o, 1);
}

TEST(BlurryWindow, IsTheFourierFormWithoutDecay) {
  for (const int64_t slots : {1, 5, 9}) {
    const Inputs in = random_inputs(70);
    expect_same(in, blurry_window(in.q, in.k, in.v, {.sizes = {slots, slots}, .decay = false}).o,
                ssm_form(in, {slots, slots}));
  }
  // Beyond resolution 1 both forms have the same slots at times t for which tN/P is an integer.
  for (const BlurrySizes& sizes : {BlurrySizes{5, 10}, {7, 21}, {9, 15}}) {
    const Inputs in = random_inputs(70);
    const Tensor fourier = ssm_form(in, sizes), o = blurry_window(in.q, in.k, in.v, {.sizes = sizes, .decay = false}).o;
    int64_t compared = 0;
    for (int64_t t = 0; t < 70; ++t) {
      if (t * sizes.slots % sizes.period != 0) continue;
      EXPECT_CLOSE(o.select(1, t), fourier.select(1, t), 1e-10) << t;
      ++compared;
    }
    EXPECT_GT(compared, 10);
  }
}

// w is the sum of cosines, is periodic also far from the start, and a resumed call continues at its position.
TEST(BlurryWindow, GoesOnFromItsPosition) {
  const Inputs in = random_inputs(90);
  const BlurrySizes sizes{5, 13};
  const Tensor far = at::tensor({int64_t{7}, 7 + 13 * (int64_t{1} << 40)}, at::kLong);
  const Tensor w = blurry_weights(far, sizes, at::kDouble);
  EXPECT_TRUE(at::equal(w[0], w[1]));
  EXPECT_CLOSE(w.sum(1), at::ones({2}, at::kDouble), 1e-12);
  for (const bool decay : {true, false}) {
    const Tensor whole = blurry_window(in.q, in.k, in.v, {.sizes = sizes, .decay = decay}).o;
    const auto part = [&](int64_t first, int64_t length, BlurryOptions options) {
      options.sizes = sizes;
      options.decay = decay;
      return blurry_window(in.q.narrow(1, first, length), in.k.narrow(1, first, length), in.v.narrow(1, first, length),
                           options);
    };
    const SlotResult a = part(0, 37, {}), b = part(37, 53,
                                                   {.key_state = a.key_state,
                                                    .value_state = a.value_state,
                                                    .position = at::full({2}, 37, at::kLong)});
    expect_same(in, at::cat({a.o, b.o}, 1), whole);
  }
}

TEST(BlurryWindow, RefusesWhatDoesNotFit) {
  const Tensor x = at::zeros({1, 4, 2, 3});
  EXPECT_EQ(testing::error_of([&] { blurry_window(x, x, x, {.sizes = {4, 8}}); }),
            "[blurry_window] slots must be odd and positive, got 4");
  EXPECT_EQ(testing::error_of([&] { blurry_window(x, x, x, {.sizes = {5, 4}}); }),
            "[blurry_window] period (4) must be at least as large as slots (5)");
  EXPECT_THROW(blurry_window(x, x, x, {.sizes = {5, 5}, .key_state = at::zeros({1, 2, 5, 3})}), InputError);
}

}  // namespace
}  // namespace cortado::blurry_window_test
