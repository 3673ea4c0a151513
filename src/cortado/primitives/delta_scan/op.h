// delta_scan: S_t = S' + k_t ⊗ beta_t (v_t - S'ᵀ k_t), S' = diag(exp g_t) S_{t-1}, o_t = S_tᵀ q_t · scale.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// q, k [B,T,H,K], v [B,T,H,V], beta [B,T,H], state [B|N,H,K,V]; heads broadcast (see primitives/common.h). g: natural
// log, <= 0, -inf allowed: [B,T,H,K], [B,T,H], [H], [H,K], or none. k is used as given: if |k|² beta > 2 the recurrence
// diverges, so normalise it first. scale: default K^-1/2. cu_seqlens: packed sequences, B = 1. Returns (o,
// final_state).
TensorTuple<2> delta_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                          const OptionalTensor& g = {}, std::optional<double> scale = {},
                          const OptionalTensor& initial_state = {}, const OptionalTensor& cu_seqlens = {});

// The definition, token by token, for any dtype and differentiable by autograd. Tests compare against it.
TensorTuple<2> delta_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                    const OptionalTensor& g = {}, std::optional<double> scale = {},
                                    const OptionalTensor& initial_state = {}, const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
