// latte: attention through L latent states, p(s|t) = Σ_l p(l|t) p(s|l,t)  (Latte eq. 6-17, Latte-Macchiato eq. 6-14).
#pragma once

#include "cortado/primitives/latte_scan/op.h"

namespace cortado {

// query_logits and key_logits θ [B,T,H,L], v [B,T,H,V]. p(l|t) = softmax_l(query_logits), p(s|l,t) =
// softmax_{s<=t}(θ_{s,l}). With causal = false the inner softmax runs over the whole sequence; no state is accepted,
// and the returned state is zero. Throws InputError for shapes that do not fit and for an incomplete state.
LatteResult latte(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal = true,
                  const LatteState& start = {}, const OptionalTensor& cu_seqlens = {});

// As latte(), with p(l|t) given as `weights` [B,T,H,L]. They need not sum to one: in Macchiato the window has a share.
LatteResult latte_with_weights(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal,
                               const LatteState& start, const OptionalTensor& cu_seqlens);

// Normalised linear attention with φ = exp, finite for any logit: p(s|t) ∝ Σ_l exp(query_logits_tl + θ_sl). This is
// Latte with p(l|t) = softmax_l(query_logits_tl + log Σ_s exp θ_sl), where the sum is over the tokens s that t sees.
// Arguments and state as in latte().
LatteResult exponential_attention(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal,
                                  const LatteState& start, const OptionalTensor& cu_seqlens);

// The definition: the T x T matrix p(s|t), dense, from the zero state; differentiable by autograd. `weights` as in
// latte_with_weights().
Tensor latte_reference(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal);

// The definition of exponential_attention(), dense, from the zero state: each row is softmax_s(log Σ_l
// exp(query_logits_tl + θ_sl)).
Tensor exponential_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal);

}  // namespace cortado
