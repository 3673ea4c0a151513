// latte_scan: causal attention through latents, including the softmaxes over time and over the latents.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// The carried state: Σ_s exp(θ_s - m) v_s [B|N,H,L,V], Σ_s exp(θ_s - m) [B|N,H,L], and the running maximum m [B|N,H,L],
// -inf at the start. All three are given, or none.
struct LatteState {
  OptionalTensor state;
  OptionalTensor normalizer;
  OptionalTensor maximum;
};

struct LatteResult {
  Tensor o;  // [B,T,H,V], v's type
  Tensor state, normalizer, maximum;

  Tensors tensors() const { return {o, state, normalizer, maximum}; }
};

// With key logits θ [B,T,h,L] and values v [B,T,h,V]
//   o_t = Σ_l p(l|t) Σ_{s<=t} softmax_{s<=t}(θ_sl) v_s.
// p(l|t) is softmax_l(query [B,T,h,L]), or with softmax = false the query itself. Heads broadcast. cu_seqlens: packed
// sequences, B = 1.
LatteResult latte_scan(const Tensor& query, const Tensor& key_logits, const Tensor& v, bool softmax = true,
                       const LatteState& start = {}, const OptionalTensor& cu_seqlens = {});

// The definition, by those of time_softmax and the gated scan; differentiable by autograd.
LatteResult latte_scan_reference(const Tensor& query, const Tensor& key_logits, const Tensor& v, bool softmax = true,
                                 const LatteState& start = {}, const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
