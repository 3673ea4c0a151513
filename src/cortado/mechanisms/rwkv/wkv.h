// The weighted mean over time of RWKV-4.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// The state, [rows,A] each: Σ_s exp(k_s - (t-s) w - m) v_s, the sum without v_s, and the decayed running maximum m.
struct WkvState {
  Tensor numerator, denominator, maximum;
};

// Per channel: o_t = Σ_s p(s|t) v_s, with p(s|t) a softmax over k_s - (t-1-s) w for s < t and k_t + u for the current
// token. k, v [B,T,A] float32 or float64; w >= 0 and u [A]. With `state`: continues from it and updates it.
Tensor wkv(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u, WkvState* state,
           const OptionalTensor& cu_seqlens);

// The definition: the T x T logits per channel, dense, from the zero state.
Tensor wkv_reference(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u);

}  // namespace cortado
