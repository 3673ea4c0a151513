#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/testing/compare.h"

namespace cortado::macchiato_test {
namespace {

using testing::expect_gradients_close;
using testing::gradients;
using testing::weights_like;

struct Inputs {
  Tensor query_logits, key_logits, v, window_q, window_k;
  std::vector<Tensor> all() const { return {query_logits, key_logits, v, window_q, window_k}; }
};

Inputs make_inputs(int64_t batch, int64_t tokens, int64_t heads, int64_t latents, int64_t keys, int64_t values) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  auto leaf = [&](int64_t size) { return (at::randn({batch, tokens, heads, size}, options) * 2).requires_grad_(true); };
  return {leaf(latents + 1), leaf(latents), leaf(values), leaf(keys), leaf(keys)};
}

Inputs part(const Inputs& in, int64_t from, int64_t count) {
  auto cut = [&](const Tensor& x) { return x.narrow(1, from, count); };
  return {cut(in.query_logits), cut(in.key_logits), cut(in.v), cut(in.window_q), cut(in.window_k)};
}

LatteResult run(const Inputs& in, const MacchiatoOptions& options, const PastKeys& past = {}) {
  return macchiato(in.query_logits, in.key_logits, in.v, in.window_q, join_past(past, in.window_k, in.v, {}), options);
}

TEST(Macchiato, WeightsSumToOne) {
  at::manual_seed(1);
  Inputs in = make_inputs(1, 90, 2, 5, 4, 1);
  in.v = at::ones({1, 90, 2, 1}, at::kDouble);  // o_t = Σ_s p(s|t)
  for (const bool causal : {true, false}) {
    MacchiatoOptions options;
    options.window = 9;
    options.causal = causal;
    EXPECT_CLOSE(run(in, options).o, in.v, 1e-12);
  }
}

TEST(Macchiato, EqualsItsDefinition) {
  at::manual_seed(2);
  for (const int64_t window : {1, 7, 64, 200}) {
    for (const bool causal : {true, false}) {
      const Inputs in = make_inputs(2, 90, 2, 5, 6, 3);
      MacchiatoOptions options;
      options.window = window;
      options.causal = causal;
      const Tensor o = run(in, options).o;
      const Tensor expected =
          macchiato_reference(in.query_logits, in.key_logits, in.v, in.window_q, in.window_k, options);
      EXPECT_CLOSE(o, expected, 1e-10);
      const auto weights = weights_like({o});
      const auto got = gradients({o}, weights, in.all()), wanted = gradients({expected}, weights, in.all());
      expect_gradients_close(got, wanted, 1e-9);
    }
  }
}

// Decoding computes few logits by its own softmax: it agrees with the definition for logits whose exponentials overflow
// too.
TEST(Macchiato, SteepLogitsOfOneTokenAreItsDefinition) {
  at::manual_seed(9);
  const Inputs made = make_inputs(2, 1, 2, 5, 6, 3);
  MacchiatoOptions options;
  for (const double by : {1.0, 300.0}) {
    const c10::InferenceMode mode;
    const Inputs in{by * made.query_logits, by * made.key_logits, made.v.clone(), made.window_q.clone(),
                    made.window_k.clone()};
    std::vector<Tensor> few;
    for (const Tensor& x : in.all()) few.push_back(x.to(at::kFloat));
    const LatteResult got = run({few[0], few[1], few[2], few[3], few[4]}, options);
    const Tensor expected =
        macchiato_reference(in.query_logits, in.key_logits, in.v, in.window_q, in.window_k, options);
    EXPECT_CLOSE(got.o, expected, 1e-4) << by;
  }
}

// Continuing with a right-aligned past, full or with a given length, equals the whole sequence.
TEST(Macchiato, ContinuesFromItsPast) {
  at::manual_seed(3);
  const Inputs in = make_inputs(2, 40, 2, 3, 4, 5);
  MacchiatoOptions options;
  options.window = 9;
  const LatteResult whole = run(in, options);
  for (const int64_t cut : {3, 8, 25}) {
    const Inputs before = part(in, 0, cut), after = part(in, cut, 40 - cut);
    const LatteResult first = run(before, options);
    MacchiatoOptions next = options;
    next.start = {first.state, first.normalizer, first.maximum};
    // Room for 8 keys; unused entries hold garbage.
    const int64_t there = std::min<int64_t>(cut, 8);
    auto aligned = [&](const Tensor& x) {
      return at::cat({at::full({2, 8 - there, 2, x.size(3)}, 1e3, at::kDouble), x.narrow(1, cut - there, there)}, 1);
    };
    const PastKeys past = {aligned(before.window_k), aligned(before.v), at::full({2}, there, at::kLong)};
    const LatteResult second = run(after, next, past);
    EXPECT_CLOSE(second.o, whole.o.narrow(1, cut, 40 - cut), 1e-10) << "cut " << cut;
    const auto weights = weights_like({second.o});
    const auto got = gradients({second.o}, weights, in.all());
    const auto wanted = gradients({whole.o.narrow(1, cut, 40 - cut)}, weights, in.all());
    expect_gradients_close(got, wanted, 1e-9);
  }
}

// With the window's logit far above the latents' the mixer is sliding-window attention; far below, it is Latte.
TEST(Macchiato, LimitsAreItsParts) {
  at::manual_seed(4);
  Inputs in = make_inputs(1, 30, 2, 4, 6, 3);
  MacchiatoOptions options;
  options.window = 5;
  WindowAttentionOptions window;
  window.window = 5;
  const Tensor local = std::get<0>(window_attention_reference(in.window_q, in.window_k, in.v, window));
  auto with_logit = [&](double logit) {
    Inputs other = in;
    other.query_logits = in.query_logits.detach().clone();
    other.query_logits.select(3, 0).fill_(logit);
    return run(other, options).o;
  };
  EXPECT_CLOSE(with_logit(1e4), local, 1e-12);
  EXPECT_CLOSE(with_logit(-1e4), latte(in.query_logits.narrow(3, 1, 4), in.key_logits, in.v).o, 1e-12);
}

// R-SWA has a window and a recurrence, and no tensors for latents.
TEST(Macchiato, WithoutLatentsThereIsNoStateOfThem) {
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  const auto mixer = make_mixer(parse_json(R"({"mixer": "macchiato", "latents": 0})", "t"), context, "t");
  const SequenceState state = mixer->zero_state(1, at::kFloat);
  for (const auto& [name, tensor] : state.tensors())
    EXPECT_GT(tensor.numel() + (name == "keys" || name == "values"), 0);
}

TEST(Macchiato, RefusesWhatDoesNotFit) {
  const Inputs in = make_inputs(1, 4, 2, 3, 4, 5);
  MacchiatoOptions options;
  options.window = 0;
  EXPECT_THROW(run(in, options), InputError);
  options.window = 3;
  Inputs wrong = in;
  wrong.query_logits = in.key_logits;
  EXPECT_THROW(run(wrong, options), InputError);
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  EXPECT_THROW(make_mixer(parse_json(R"({"mixer": "macchiato", "latents": 0, "window": null})", "t"), context, "t"),
               InputError);
  EXPECT_THROW(make_mixer(parse_json(R"({"mixer": "macchiato", "latents": 7})", "t"), context, "t"), InputError);
  EXPECT_THROW(make_mixer(parse_json(R"({"mixer": "machiato"})", "t"), context, "t"), InputError);
}

}  // namespace
}  // namespace cortado::macchiato_test
