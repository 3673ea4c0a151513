#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/base/error.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/window_attention/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"

namespace cortado::window_attention_test {
namespace {

using testing::error_of;
using testing::kNoError;
using testing::relative_error;

using Results = std::tuple<Tensor, Tensor, Tensor>;
using Attention = Results (*)(const Tensor&, const Tensor&, const Tensor&, const WindowAttentionOptions&);

struct Case {
  std::string name;
  int64_t batch = 2, queries = 17, keys = 17;
  int64_t query_heads = 2, key_heads = 2, value_heads = 2, key_size = 4, value_size = 6;
  std::optional<int64_t> window = {};
  bool causal = true;
  std::optional<double> scale = {}, softcap = {};
  int64_t extra = 0, extra_heads = 0, mask_heads = -1;  // mask_heads: -1 no mask, 0 [B,E], else [B,h,E]
  std::vector<int64_t> bounds = {}, key_bounds = {};    // packed; then batch = 1
  std::vector<int64_t> first_key = {};
  double magnitude = 1.0;  // of q
  at::ScalarType type = at::kDouble;
};

struct Inputs {
  std::vector<Tensor> leaves;  // q, k, v, and extra_k, extra_v
  WindowAttentionOptions options;
};

Inputs make_inputs(const Case& c) {
  at::manual_seed(7);
  const auto leaf = [&](std::vector<int64_t> shape, double magnitude = 1.0) {
    return (at::randn(shape, at::kDouble) * magnitude).to(c.type).requires_grad_();
  };
  Inputs in;
  in.leaves = {leaf({c.batch, c.queries, c.query_heads, c.key_size}, c.magnitude),
               leaf({c.batch, c.keys, c.key_heads, c.key_size}), leaf({c.batch, c.keys, c.value_heads, c.value_size})};
  auto& o = in.options;
  o.window = c.window;
  o.causal = c.causal;
  o.scale = c.scale;
  o.softcap = c.softcap;
  if (!c.bounds.empty()) o.cu_seqlens = at::tensor(c.bounds, at::kInt);
  if (!c.key_bounds.empty()) o.cu_seqlens_k = at::tensor(c.key_bounds, at::kLong);
  if (!c.first_key.empty()) o.first_key = at::tensor(c.first_key, at::kLong);
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  if (c.extra_heads > 0) {
    in.leaves.push_back(leaf({rows, c.extra, c.extra_heads, c.key_size}));
    in.leaves.push_back(leaf({rows, c.extra, c.extra_heads, c.value_size}));
    o.extra_k = in.leaves[3];
    o.extra_v = in.leaves[4];
    if (c.mask_heads == 0) o.extra_mask = at::rand({rows, c.extra}) < 0.6;
    if (c.mask_heads > 0) o.extra_mask = at::rand({rows, c.mask_heads, c.extra}) < 0.6;
  }
  return in;
}

struct Outcome {
  std::vector<Tensor> outputs, gradients;
};

// Outputs, and the gradients for random gradients of all three outputs (of o alone if `only_o`).
Outcome run(Attention attention, const Inputs& in, bool only_o = false) {
  const auto [o, lse, row_max] = attention(in.leaves[0], in.leaves[1], in.leaves[2], in.options);
  Outcome result{{o, lse, row_max}, {}};
  std::vector<Tensor> roots, weights;
  at::manual_seed(11);
  for (const auto& x : result.outputs) {
    const Tensor weight = at::randn(x.sizes(), at::kDouble).to(x.scalar_type());
    if (!x.requires_grad() || (only_o && !roots.empty())) continue;  // the reference's outputs without any key
    roots.push_back(x);
    weights.push_back(weight);
  }
  result.gradients.resize(in.leaves.size());
  if (!roots.empty()) result.gradients = torch::autograd::grad(roots, in.leaves, weights, std::nullopt, false, true);
  return result;
}

void expect_like_reference(const Case& c, double tolerance) {
  SCOPED_TRACE(c.name);
  const Inputs in = make_inputs(c);
  const Outcome own = run(&window_attention, in), judge = run(&window_attention_reference, in);
  const char* outputs[] = {"o", "lse", "row_max"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(own.outputs[i].scalar_type(), judge.outputs[i].scalar_type());
    EXPECT_LE(relative_error(own.outputs[i], judge.outputs[i]), tolerance) << outputs[i];
  }
  const char* inputs[] = {"q", "k", "v", "extra_k", "extra_v"};
  for (size_t i = 0; i < in.leaves.size(); ++i) {
    ASSERT_TRUE(own.gradients[i].defined()) << inputs[i];
    EXPECT_EQ(own.gradients[i].scalar_type(), in.leaves[i].scalar_type());
    const Tensor wanted = judge.gradients[i].defined() ? judge.gradients[i] : at::zeros_like(in.leaves[i]);
    EXPECT_LE(relative_error(own.gradients[i], wanted), tolerance) << "gradient of " << inputs[i];
  }
}

constexpr double kExact = 1e-9;

std::vector<Case> lengths() {
  std::vector<Case> cases;
  for (const int64_t t : {1, 2, 15, 16, 17, 63, 64, 65, 100, 257}) {
    for (const bool causal : {true, false}) {
      for (const std::optional<int64_t> window : {std::optional<int64_t>{}, {1}, {5}, {70}}) {
        Case c{.name = concat("T = ", t, causal ? ", causal" : ", both ways", ", window ", window.value_or(0))};
        c.queries = c.keys = t;
        c.batch = t > 100 ? 1 : 2;
        c.window = window;
        c.causal = causal;
        cases.push_back(c);
      }
    }
  }
  cases.push_back({.name = "T = 1000", .batch = 1, .queries = 1000, .keys = 1000, .window = 129});
  cases.push_back({.name = "T = 1000, both ways, grouped",
                   .batch = 1,
                   .queries = 1000,
                   .keys = 1000,
                   .query_heads = 4,
                   .window = 33,
                   .causal = false});
  return cases;
}

TEST(WindowAttention, EveryLength) {
  for (const Case& c : lengths()) expect_like_reference(c, kExact);
}

std::vector<Case> options() {
  return {
      {.name = "scale", .scale = 0.3},
      {.name = "softcap", .scale = 2.0, .softcap = 1.5},
      {.name = "softcap, window, long", .queries = 300, .keys = 300, .window = 20, .softcap = 0.7},
      {.name = "fewer queries than keys", .queries = 5, .keys = 90},
      {.name = "fewer queries than keys, window", .queries = 70, .keys = 290, .window = 30},
      {.name = "fewer queries than keys, both ways", .queries = 70, .keys = 90, .window = 8, .causal = false},
      {.name = "more queries than keys: some see nothing", .queries = 90, .keys = 21},
      {.name = "more queries than keys, window", .queries = 90, .keys = 21, .window = 4},
      {.name = "more queries than keys, both ways, window", .queries = 90, .keys = 21, .window = 4, .causal = false},
      {.name = "more queries than keys, both ways", .queries = 90, .keys = 21, .causal = false},
      {.name = "no keys", .queries = 5, .keys = 0},
      {.name = "no queries", .queries = 0, .keys = 5},
      {.name = "nothing", .queries = 0, .keys = 0},
      {.name = "no batch", .batch = 0},
      {.name = "grouped queries", .query_heads = 6},
      {.name = "grouped queries, long", .batch = 1, .queries = 300, .keys = 300, .query_heads = 6, .window = 50},
      {.name = "one key head", .query_heads = 4, .key_heads = 1, .value_heads = 1},
      {.name = "fewer value heads", .query_heads = 4, .key_heads = 4, .value_heads = 2},
      {.name = "fewer key heads, grouped", .query_heads = 8, .key_heads = 2, .value_heads = 4},
      {.name = "fewer query heads than keys", .query_heads = 1, .key_heads = 4, .value_heads = 2},
      {.name = "first_key", .batch = 3, .queries = 3, .keys = 20, .window = 9, .first_key = {0, 14, 19}},
      {.name = "first_key, some see nothing", .batch = 3, .queries = 70, .keys = 80, .first_key = {0, 80, 41}},
      {.name = "one query", .queries = 1, .keys = 70},
      {.name = "one query, window, grouped", .queries = 1, .keys = 700, .query_heads = 8, .window = 40},
      {.name = "one query, long keys left in place",
       .batch = 3,
       .queries = 1,
       .keys = 5000,
       .first_key = {0, 17, 4999}},
      {.name = "one query, one row", .batch = 1, .queries = 1, .keys = 5000, .query_heads = 4},
      {.name = "a window far longer than the keys", .window = INT64_MAX},
      {.name = "the same, both ways", .window = INT64_MAX - 1, .causal = false},
  };
}

TEST(WindowAttention, EveryOption) {
  for (const Case& c : options()) expect_like_reference(c, kExact);
}

TEST(WindowAttention, ExtraKeys) {
  const std::vector<Case> cases = {
      {.name = "extra", .extra = 5, .extra_heads = 2},
      {.name = "extra, long, window", .queries = 300, .keys = 300, .window = 20, .extra = 9, .extra_heads = 2},
      {.name = "empty extra", .extra = 0, .extra_heads = 2},
      {.name = "mask for all heads", .extra = 6, .extra_heads = 2, .mask_heads = 0},
      {.name = "mask by head", .query_heads = 4, .extra = 6, .extra_heads = 2, .mask_heads = 4},
      {.name = "mask by key head", .query_heads = 4, .extra = 6, .extra_heads = 2, .mask_heads = 2},
      {.name = "extra by query head", .query_heads = 4, .extra = 6, .extra_heads = 4, .mask_heads = 4},
      {.name = "one extra head", .extra = 6, .extra_heads = 1, .mask_heads = 1},
      {.name = "softcap", .softcap = 0.9, .extra = 6, .extra_heads = 2, .mask_heads = 0},
      {.name = "extra alone", .keys = 0, .extra = 6, .extra_heads = 2},
      {.name = "extra alone, masked", .keys = 0, .extra = 2, .extra_heads = 2, .mask_heads = 2},
      {.name = "some see only extra", .queries = 90, .keys = 21, .extra = 3, .extra_heads = 2, .mask_heads = 2},
      {.name = "one query", .queries = 1, .keys = 5000, .extra = 3, .extra_heads = 2, .mask_heads = 2},
      {.name = "packed",
       .batch = 1,
       .queries = 100,
       .keys = 100,
       .window = 20,
       .extra = 4,
       .extra_heads = 2,
       .mask_heads = 0,
       .bounds = {0, 3, 3, 90, 100}},
      {.name = "packed, by head",
       .batch = 1,
       .queries = 100,
       .keys = 100,
       .query_heads = 4,
       .extra = 4,
       .extra_heads = 4,
       .mask_heads = 4,
       .bounds = {0, 3, 3, 90, 100}},
  };
  for (const Case& c : cases) expect_like_reference(c, kExact);
}

TEST(WindowAttention, PackedSequences) {
  std::vector<int64_t> short_ones{0};
  for (int i = 1; i <= 40; ++i) short_ones.push_back(short_ones.back() + i % 7);
  const int64_t total = short_ones.back();
  std::vector<int64_t> one_query_each{0, 1, 2, 3, 4}, their_keys{0, 300, 310, 310, 600};
  for (const bool causal : {true, false}) {
    for (const std::optional<int64_t> window : {std::optional<int64_t>{}, {4}, {90}}) {
      const auto with = [&](Case c) {
        c.batch = 1;
        c.causal = causal;
        c.window = window;
        expect_like_reference(c, kExact);
      };
      with({.name = "short", .queries = total, .keys = total, .bounds = short_ones});
      with({.name = "long", .queries = 330, .keys = 330, .query_heads = 4, .bounds = {0, 0, 1, 130, 131, 330, 330}});
      with({.name = "own key bounds",
            .queries = 100,
            .keys = 200,
            .bounds = {0, 10, 10, 70, 100},
            .key_bounds = {0, 5, 50, 120, 200}});
      with({.name = "one query each", .queries = 4, .keys = 600, .bounds = one_query_each, .key_bounds = their_keys});
      with({.name = "no sequence", .queries = 0, .keys = 0, .bounds = {0}});
    }
  }
}

TEST(WindowAttention, Float32AndBfloat16) {
  for (const Case& given : options()) {
    if (given.keys > 1000) continue;
    Case c = given;
    c.type = at::kFloat;
    expect_like_reference(c, 1e-4);
    c.type = at::kBFloat16;
    expect_like_reference(c,
                          1e-2);  // both accumulate in float32 and round once: 2^-8 of the largest, at most 2 ulp apart
  }
  Case mixed{.name = "mixed types"};
  Inputs in = make_inputs(mixed);
  in.leaves[0] = in.leaves[0].detach().to(at::kBFloat16).requires_grad_();
  in.leaves[1] = in.leaves[1].detach().to(at::kFloat).requires_grad_();
  const Outcome own = run(&window_attention, in), judge = run(&window_attention_reference, in);
  EXPECT_EQ(own.outputs[0].scalar_type(), at::kDouble);
  EXPECT_EQ(own.gradients[0].scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_error(own.outputs[0], judge.outputs[0]), 1e-9);
  EXPECT_LE(relative_error(own.gradients[2], judge.gradients[2]), 1e-9);
}

TEST(WindowAttention, Extremes) {
  for (const double magnitude : {1e4, -1e4}) {
    for (const bool causal : {true, false}) {
      Case c{.name = concat("logits of ", magnitude), .queries = 100, .keys = 100, .causal = causal, .scale = 1.0};
      c.magnitude = magnitude;
      expect_like_reference(c, kExact);
      c.window = 7;
      expect_like_reference(c, kExact);
      c.softcap = 30.0;
      expect_like_reference(c, kExact);
    }
  }
  Case c{.name = "float32", .queries = 100, .keys = 100, .scale = 1.0, .magnitude = 1e4, .type = at::kFloat};
  const Outcome own = run(&window_attention, make_inputs(c));
  for (const auto& x : own.outputs) EXPECT_TRUE(at::isfinite(x).all().item<bool>());
  for (const auto& x : own.gradients) EXPECT_TRUE(at::isfinite(x).all().item<bool>());
}

TEST(WindowAttention, QueriesThatSeeNothing) {
  const Inputs in = make_inputs({.name = "", .queries = 9, .keys = 4});
  const Outcome own = run(&window_attention, in);
  EXPECT_TRUE(own.outputs[0].slice(1, 0, 5).eq(0).all().item<bool>());
  EXPECT_TRUE(own.outputs[1].slice(1, 0, 5).eq(-INFINITY).all().item<bool>());
  EXPECT_TRUE(own.outputs[2].slice(1, 0, 5).eq(-INFINITY).all().item<bool>());
  for (const auto& x : own.gradients) EXPECT_TRUE(at::isfinite(x).all().item<bool>());
  EXPECT_TRUE(own.gradients[0].slice(1, 0, 5).eq(0).all().item<bool>());
}

// The backward gets Σ exp(score - row_max), and 1 where there is nothing to be summed. Float64 is computed by
// tensors, float32 by the kernels for many queries and for few.
TEST(WindowAttention, DenominatorsOfTheBackward) {
  using Operator =
      TensorTuple<4>(const Tensor&, const Tensor&, const Tensor&, std::optional<int64_t>, bool, std::optional<double>,
                     std::optional<double>, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&);
  const auto op = find_operator<Operator>("cortado::_window_attention");
  for (const auto type : {at::kDouble, at::kFloat}) {
    for (const auto& [queries, keys] : {std::pair{9, 4}, {100, 60}, {3, 1}}) {
      const Inputs in = make_inputs({.name = "", .queries = queries, .keys = keys, .scale = 1.0, .type = type});
      const Tensor q = in.leaves[0], k = in.leaves[1];
      const auto out = op.call(q, k, in.leaves[2], {}, true, 1.0, {}, {}, {}, {}, {}, {}, {});
      const Tensor late = at::ones({queries, keys}, at::kBool).triu(keys - queries + 1);
      const Tensor scores = at::einsum("bihd,bjhd->bihj", {q, k}).masked_fill(late.unsqueeze(1), -INFINITY);
      const Tensor sums = (scores - scores.amax(-1, true).clamp_min(-1e30)).exp().sum(-1);
      EXPECT_CLOSE(std::get<3>(out), sums.masked_fill(sums == 0, 1), 1e-5) << type << " " << queries;
    }
  }
}

TEST(WindowAttention, GradientOfOneOutputAlone) {
  for (const int64_t extra_heads : {0, 2}) {
    const Inputs in = make_inputs({.name = "", .extra = 3, .extra_heads = extra_heads});
    const Outcome own = run(&window_attention, in, true), judge = run(&window_attention_reference, in, true);
    for (size_t i = 0; i < in.leaves.size(); ++i)
      EXPECT_LE(relative_error(own.gradients[i], judge.gradients[i]), kExact);
  }
}

TEST(WindowAttention, DecodingContinuesThePrefill) {
  const Inputs in = make_inputs({.name = "", .queries = 40, .keys = 40, .query_heads = 4, .window = 9});
  const at::NoGradGuard no_grad;
  const auto whole = window_attention(in.leaves[0], in.leaves[1], in.leaves[2], in.options);
  for (int64_t t = 0; t < 40; ++t) {
    const int64_t first = std::max<int64_t>(0, t - 8), count = t + 1 - first;
    const auto step = window_attention(in.leaves[0].narrow(1, t, 1), in.leaves[1].narrow(1, first, count),
                                       in.leaves[2].narrow(1, first, count), in.options);
    EXPECT_LE(relative_error(std::get<0>(step), std::get<0>(whole).narrow(1, t, 1)), kExact);
    EXPECT_LE(relative_error(std::get<1>(step), std::get<1>(whole).narrow(1, t, 1)), kExact);
  }
}

TEST(WindowAttention, OtherSequencesCannotContaminate) {
  // NaN in one sequence, and in the keys after a query, must not reach queries that do not see them.
  Inputs in = make_inputs({.name = "", .batch = 1, .queries = 20, .keys = 20, .bounds = {0, 8, 20}});
  const at::NoGradGuard no_grad;
  const auto clean = window_attention(in.leaves[0], in.leaves[1], in.leaves[2], in.options);
  const Tensor k = in.leaves[1].clone();
  k.narrow(1, 8, 12).fill_(1e300);
  const auto loud = window_attention(in.leaves[0], k, in.leaves[2], in.options);
  EXPECT_TRUE(std::get<0>(loud).narrow(1, 0, 8).equal(std::get<0>(clean).narrow(1, 0, 8)));
}

TEST(WindowAttention, Errors) {
  const Tensor q = at::zeros({2, 5, 4, 8}), k = at::zeros({2, 7, 2, 8}), v = at::zeros({2, 7, 2, 3});
  const auto with = [&](const WindowAttentionOptions& options) {
    return error_of([&] { window_attention(q, k, v, options); });
  };
  EXPECT_EQ(error_of([&] { window_attention(q, k, at::zeros({2, 6, 2, 3})); }),
            "[window_attention] expected v of shape [2, 7, *, *], got [2, 6, 2, 3]");
  EXPECT_EQ(error_of([&] { window_attention(q, at::zeros({2, 7, 2, 9}), v); }),
            "[window_attention] expected k of shape [2, *, *, 8], got [2, 7, 2, 9]");
  EXPECT_NE(error_of([&] { window_attention(q, at::zeros({2, 7, 3, 8}), v); }), kNoError);
  EXPECT_NE(error_of([&] { window_attention(q.to(at::kLong), k, v); }), kNoError);
  EXPECT_EQ(with({.window = 0}), "[window_attention] window must be at least 1, got 0");
  EXPECT_EQ(with({.softcap = 0.0}), "[window_attention] softcap must be positive, got 0");
  const Tensor extra_k = at::zeros({2, 3, 2, 8}), extra_v = at::zeros({2, 3, 2, 3});
  EXPECT_EQ(with({.extra_k = extra_k}), "[window_attention] extra_k and extra_v must be given together");
  EXPECT_EQ(with({.extra_mask = at::ones({2, 3}, at::kBool)}),
            "[window_attention] extra_mask needs extra_k and extra_v");
  EXPECT_EQ(with({.extra_k = extra_k, .extra_v = extra_v}), kNoError);
  EXPECT_NE(with({.extra_k = extra_k, .extra_v = at::zeros({2, 4, 2, 3})}), kNoError);
  EXPECT_NE(with({.extra_k = extra_k, .extra_v = at::zeros({2, 3, 2, 4})}), kNoError);
  EXPECT_NE(with({.extra_k = extra_k, .extra_v = extra_v, .extra_mask = at::ones({2, 3})}), kNoError);
  EXPECT_NE(with({.extra_k = extra_k, .extra_v = extra_v, .extra_mask = at::ones({2, 3, 3}, at::kBool)}), kNoError);
  EXPECT_EQ(with({.cu_seqlens = at::tensor({0, 5})}), "[window_attention] cu_seqlens needs a batch of 1, got 2");
  EXPECT_EQ(with({.cu_seqlens_k = at::tensor({0, 7})}), "[window_attention] cu_seqlens_k needs cu_seqlens");
  EXPECT_NE(with({.first_key = at::tensor({0, 1, 2})}), kNoError);
  const Tensor q1 = q.narrow(0, 0, 1), k1 = k.narrow(0, 0, 1), v1 = v.narrow(0, 0, 1);
  EXPECT_NE(error_of([&] { window_attention(q1, k1, v1, {.cu_seqlens = at::tensor({0, 5})}); }), kNoError);
  EXPECT_NE(error_of([&] {
              window_attention(q1, k1, v1, {.cu_seqlens = at::tensor({0, 5}), .cu_seqlens_k = at::tensor({0, 3, 7})});
            }),
            kNoError);
}

}  // namespace
}  // namespace cortado::window_attention_test
