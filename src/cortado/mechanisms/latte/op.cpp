#include "cortado/mechanisms/latte/op.h"

#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado {
namespace {

constexpr const char* kLatteOp = "latte";

// How `query` becomes the weights p(l|t): it is the weights; their logits; or logits to which log Σ_s exp θ_s is added
// before the softmax.
enum class Query { kWeights, kLogits, kJointLogits };

// p(l|t) [B,T,H,L], given sum = Σ_s exp(θ_s - m). A latent with sum 0 has seen no token and gets the lowest logit.
Tensor posterior(Query kind, const Tensor& query, const Tensor& m, const Tensor& sum) {
  if (kind == Query::kWeights) return query;
  if (kind == Query::kLogits) return at::softmax(query, -1);
  const Tensor nothing = sum == 0;
  const double lowest =
      query.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
  return at::softmax((query + m + sum.masked_fill(nothing, 1).log()).masked_fill(nothing, lowest), -1);
}

// The weights depend on the normaliser, so it is computed first.
LatteResult joint_latte(const Tensor& query, const Tensor& theta, const Tensor& v, const ScanHeads& heads,
                        const LatteState& start, const OptionalTensor& cu_seqlens) {
  const TimeSoftmax p = time_softmax(theta, start.normalizer, start.maximum, cu_seqlens);
  const Tensor normalizer = expand_heads(p.normalizer, heads.out);
  const Tensor weights =
      posterior(Query::kJointLogits, expand_heads(query, heads.out), expand_heads(p.maximum, heads.out), normalizer);
  const auto [o, state] =
      gated_scan(divide_or_zero(weights, normalizer), p.keys, v, p.gate, "key", 1.0, {}, start.state, cu_seqlens);
  return {o.to(v.scalar_type()), state, p.last_normalizer, p.last_maximum};
}

// p(s|l) is a softmax over the whole sequence: each latent is a weighted mean of v, read by all tokens.
Tensor bidirectional_latte(Query kind, const Tensor& query, const Tensor& theta, const Tensor& v,
                           const ScanHeads& heads, const OptionalTensor& cu_seqlens) {
  const SequenceMeans latents = sequence_means(theta, expand_heads(v, heads.state), cu_seqlens);
  auto of_token = [&](const Tensor& x) { return at_tokens(expand_heads(x, heads.out, 1), cu_seqlens, theta); };
  const Tensor weights = posterior(kind, expand_heads(query, heads.out), of_token(latents.peak), of_token(latents.sum));
  return read_sequences(weights, expand_heads(latents.means, heads.out, 1), cu_seqlens);
}

LatteResult read_latte(Query kind, const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal,
                       const LatteState& start, const OptionalTensor& cu_seqlens) {
  const NoAutocast as_given;
  const Sizes sizes(kLatteOp, cu_seqlens,
                    {{"v", v, "BThV"},
                     {"key_logits", key_logits, "BThL"},
                     {"query_logits", weights, "BTqL"},
                     {"state", start.state, "NSLV"},
                     {"normalizer", start.normalizer, "NSL"},
                     {"maximum", start.maximum, "NSL"}});
  const ScanHeads heads = heads_of(sizes);
  const bool resumed =
      given_together(kLatteOp, {&start.state, &start.normalizer, &start.maximum}, "state, normalizer and maximum");
  fail_input_if(resumed && !causal, "[latte] causal=False takes no state");
  if (causal && kind != Query::kJointLogits) {
    return latte_scan(weights, key_logits, v, kind == Query::kLogits, start, cu_seqlens);
  }
  const auto type = accumulation_type({weights, key_logits, v, start.state, start.normalizer, start.maximum});
  const Tensor theta = expand_heads(key_logits.to(type), heads.state);
  if (causal) return joint_latte(weights.to(type), theta, v, heads, start, cu_seqlens);
  const auto options = theta.options().requires_grad(false);
  const Tensor o = bidirectional_latte(kind, differentiable_once(weights.to(type)), differentiable_once(theta),
                                       differentiable_once(v), heads, cu_seqlens);
  const c10::SymInt &rows = sizes['N'], &latents = sizes['L'];
  const auto nothing = [&] { return at::zeros_symint({rows, heads.state, latents}, options); };
  return {o.to(v.scalar_type()), at::zeros_symint({rows, heads.state, latents, sizes['V']}, options), nothing(),
          nothing()};
}

// In the order of the schema.
struct LatteOperatorArguments {
  const Tensor &query_logits, &key_logits, &v;
  bool causal;
  const OptionalTensor &state, &normalizer, &maximum, &cu_seqlens;
};
using LatteOperatorSignature = TensorTuple<4>(const Tensor&, const Tensor&, const Tensor&, bool, const OptionalTensor&,
                                              const OptionalTensor&, const OptionalTensor&, const OptionalTensor&);

TensorTuple<4> latte_operator(const LatteOperatorArguments& in) {
  const LatteState start{in.state, in.normalizer, in.maximum};
  const LatteResult result = latte(in.query_logits, in.key_logits, in.v, in.causal, start, in.cu_seqlens);
  return {result.o, result.state, result.normalizer, result.maximum};
}

}  // namespace

LatteResult latte_with_weights(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal,
                               const LatteState& start, const OptionalTensor& cu_seqlens) {
  return read_latte(Query::kWeights, weights, key_logits, v, causal, start, cu_seqlens);
}

LatteResult exponential_attention(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal,
                                  const LatteState& start, const OptionalTensor& cu_seqlens) {
  return read_latte(Query::kJointLogits, query_logits, key_logits, v, causal, start, cu_seqlens);
}

LatteResult latte(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal,
                  const LatteState& start, const OptionalTensor& cu_seqlens) {
  return read_latte(Query::kLogits, query_logits, key_logits, v, causal, start, cu_seqlens);
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "latte(Tensor query_logits, Tensor key_logits, Tensor v, *, bool causal=True, Tensor? state=None, "
      "Tensor? normalizer=None, Tensor? maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor state, "
      "Tensor normalizer, Tensor maximum)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, gathered<LatteOperatorSignature, latte_operator>));
}

}  // namespace cortado
