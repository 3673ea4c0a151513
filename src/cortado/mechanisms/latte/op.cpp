#include "cortado/mechanisms/latte/op.h"

#include "cortado/mechanisms/sequences.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

constexpr const char* kName = "latte";

struct Heads {
  c10::SymInt state, out;
};

Heads check(const Tensor& weights, const Tensor& key_logits, const Tensor& v) {
  expect_shape(kName, "v", v, {-1, -1, -1, -1});
  expect_shape(kName, "key_logits", key_logits, {v.sym_size(0), v.sym_size(1), -1, -1});
  expect_shape(kName, "query_logits", weights, {v.sym_size(0), v.sym_size(1), -1, key_logits.sym_size(3)});
  const c10::SymInt state = common_heads(kName, {{"key_logits", key_logits.sym_size(2)}, {"v", v.sym_size(2)}});
  return {state, output_heads(kName, weights.sym_size(2), state)};
}

// Where no key has been seen (all θ = -inf) the normaliser is 0, and so is everything that it divides.
Tensor divide_or_zero(const Tensor& x, const Tensor& by) { return x / by.masked_fill(by == 0, 1); }

// p(s|l,t) = exp(θ_s - m_t) / α_t as a gated scan: S_t = exp(m_{t-1} - m_t) S_{t-1} + exp(θ_t - m_t) ⊗ v_t, α the same
// with v = 1. The result does not depend on m, so m and the gate it makes have no gradient.
LatteResult causal_latte(const Tensor& weights, const Tensor& theta, const Tensor& v, const Heads& heads,
                         const LatteState& start, const std::optional<Tensor>& cu_seqlens) {
  auto [m, before, last_m] = running_max(theta, start.maximum, cu_seqlens);
  const Tensor seen = m.masked_fill(m == -std::numeric_limits<double>::infinity(), 0);
  const Tensor gate = before - seen, keys = (theta - seen).exp();
  const std::optional<Tensor> alpha_start =
      start.normalizer ? std::optional<Tensor>(start.normalizer->flatten(1)) : std::nullopt;
  auto [alpha, last_alpha] = elementwise_scan(gate.flatten(2), keys.flatten(2), alpha_start, cu_seqlens);
  const Tensor normalizer = repeat_heads(alpha.view_symint(keys.sym_sizes()), heads.out);
  const Tensor q = divide_or_zero(repeat_heads(weights, heads.out), normalizer);
  auto [o, state] = gated_scan(q, keys, v, gate, "key", 1.0, {}, start.state, cu_seqlens);
  return {o, state, last_alpha.view_symint({last_alpha.sym_size(0), heads.state, theta.sym_size(3)}), last_m};
}

// p(s|l) = softmax over the whole sequence. Packed: one maximum and one sum a sequence, gathered back to its tokens.
Tensor bidirectional_latte(const Tensor& weights, const Tensor& theta, const Tensor& v, const Heads& heads,
                           const std::optional<Tensor>& cu_seqlens) {
  const Tensor p = repeat_heads(weights, heads.out);
  if (!cu_seqlens) {
    const Tensor means = at::matmul(at::softmax(theta, 1).permute({0, 2, 3, 1}),
                                    repeat_heads(v, heads.state).to(theta.scalar_type()).transpose(1, 2));
    return at::matmul(p.transpose(1, 2), repeat_heads(means.unsqueeze(1), heads.out).squeeze(1)).transpose(1, 2);
  }
  const Tensor sequence = sequence_numbers(*cu_seqlens, theta);
  auto [m, before, last_m] = running_max(theta, {}, cu_seqlens);
  const Tensor peak = last_m.masked_fill(last_m == -std::numeric_limits<double>::infinity(), 0);
  const Tensor keys = (theta - peak.index_select(0, sequence).unsqueeze(0)).exp();
  const Tensor still = at::zeros_symint({heads.state}, keys.options());
  const Tensor ones = at::ones_symint({1, theta.sym_size(1), heads.state, 1}, keys.options());
  auto [unused, sums] = gated_scan(keys, keys, at::cat({repeat_heads(v, heads.state).to(keys.scalar_type()), ones}, 3),
                                   still, "key", 1.0, {}, {}, cu_seqlens);
  const c10::SymInt values = v.sym_size(3);
  const Tensor means = divide_or_zero(sums.narrow_symint(3, 0, values), sums.narrow_symint(3, values, 1));
  const Tensor mine = repeat_heads(means.unsqueeze(1), heads.out).squeeze(1).index_select(0, sequence);  // [T,H,L,V]
  return at::matmul(p.squeeze(0).unsqueeze(2), mine).squeeze(2).unsqueeze(0);
}

}  // namespace

LatteResult latte_with_weights(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal,
                               const LatteState& start, const std::optional<Tensor>& cu_seqlens) {
  const NoAutocast as_given;
  const Heads heads = check(weights, key_logits, v);
  const c10::SymInt rows = packed_rows(kName, cu_seqlens, v.sym_size(0));
  const bool resumed =
      given_together(kName, {&start.state, &start.normalizer, &start.maximum}, "state, normalizer and maximum");
  fail_input_if(resumed && !causal, "[latte] causal=False takes no state");
  const c10::SymInt latents = key_logits.sym_size(3);
  if (resumed) {
    expect_shape(kName, "state", *start.state, {rows, heads.state, latents, v.sym_size(3)});
    expect_shape(kName, "normalizer", *start.normalizer, {rows, heads.state, latents});
    expect_shape(kName, "maximum", *start.maximum, {rows, heads.state, latents});
  }
  const auto type = accumulation_type({weights, key_logits, v, start.state, start.normalizer, start.maximum});
  const Tensor theta = repeat_heads(key_logits.to(type), heads.state);
  if (causal) {
    LatteResult result = causal_latte(weights.to(type), theta, v, heads, start, cu_seqlens);
    result.o = result.o.to(v.scalar_type());
    return result;
  }
  const auto options = theta.options();
  return {bidirectional_latte(weights.to(type), theta, v, heads, cu_seqlens).to(v.scalar_type()),
          at::zeros_symint({rows, heads.state, latents, v.sym_size(3)}, options),
          at::zeros_symint({rows, heads.state, latents}, options),
          at::zeros_symint({rows, heads.state, latents}, options)};
}

LatteResult latte(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal,
                  const LatteState& start, const std::optional<Tensor>& cu_seqlens) {
  const NoAutocast as_given;
  const auto type = accumulation_type({query_logits, key_logits, v, start.state, start.normalizer, start.maximum});
  return latte_with_weights(at::softmax(query_logits.to(type), -1), key_logits, v, causal, start, cu_seqlens);
}

namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> latte_operator(const Tensor& query_logits, const Tensor& key_logits,
                                                          const Tensor& v, bool causal,
                                                          const std::optional<Tensor>& state,
                                                          const std::optional<Tensor>& normalizer,
                                                          const std::optional<Tensor>& maximum,
                                                          const std::optional<Tensor>& cu_seqlens) {
  const LatteResult result = latte(query_logits, key_logits, v, causal, {state, normalizer, maximum}, cu_seqlens);
  return {result.o, result.state, result.normalizer, result.maximum};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "latte(Tensor query_logits, Tensor key_logits, Tensor v, *, bool causal=True, Tensor? state=None, "
      "Tensor? normalizer=None, Tensor? maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor state, "
      "Tensor normalizer, Tensor maximum)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, latte_operator));
}

}  // namespace cortado
