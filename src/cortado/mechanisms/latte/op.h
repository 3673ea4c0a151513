// latte: attention through L latent states, p(s|t) = Σ_l p(l|t) p(s|l,t)  (Latte eq. 6-17, Latte-Macchiato eq. 6-14).
#pragma once

#include "cortado/primitives/latte_scan/op.h"

namespace cortado {

// query_logits, key_logits θ [B,T,H,L], v [B,T,H,V]; p(l|t) = softmax_l(query_logits), p(s|l,t) =
// softmax_{s<=t}(θ_{s,l}). causal = false: softmax over all of the sequence, no state taken, zeros returned.
LatteResult latte(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal = true,
                  const LatteState& start = {}, const OptionalTensor& cu_seqlens = {});

// The same with p(l|t) given as `weights` [B,T,H,L] (they need not sum to one: Macchiato's latents share with the
// window).
LatteResult latte_with_weights(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal,
                               const LatteState& start, const OptionalTensor& cu_seqlens);

// Normalised linear attention with φ = exp, finite at any logit: p(s|t) ∝ Σ_l exp(query_logits_tl + θ_sl). It is Latte
// with p(l|t) = softmax_l(query_logits_tl + log Σ_s exp θ_sl), the sum over the s that t sees. Arguments and state as
// `latte`.
LatteResult exponential_attention(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal,
                                  const LatteState& start, const OptionalTensor& cu_seqlens);

// The definition: the T x T matrix of p(s|t), dense, from zero; differentiable by autograd. weights as above.
Tensor latte_reference(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal);

// The definition of exponential_attention, dense, from zero: rows of softmax_s(log Σ_l exp(query_logits_tl + θ_sl)).
Tensor exponential_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal);

}  // namespace cortado
