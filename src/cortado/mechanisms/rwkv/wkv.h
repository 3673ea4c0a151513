// The weighted mean of RWKV-4.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// Sums of exp(k_s - (t-s) w - maximum)·v_s and without v, and that maximum: [rows,A] each.
struct WkvState {
  Tensor numerator, denominator, maximum;
};

// Per channel, a softmax over s < t of k_s - (t-1-s) w and, for the current token, k_t + u:
// o_t = Σ_s p(s|t) v_s. k, v [B,T,A] float32 or float64; w >= 0 and u [A]. `state`: goes on from it, leaves it updated.
Tensor wkv(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u, WkvState* state,
           const OptionalTensor& cu_seqlens);

// The definition: the T x T logits of every channel, dense, from zero.
Tensor wkv_reference(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u);

}  // namespace cortado
