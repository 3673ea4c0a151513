// dplr_scan: S_t = diag(exp g_t) S_{t-1} + b_t ⊗ S_{t-1}ᵀ a_t + k_t ⊗ v_t, o_t = S_tᵀ q_t · scale.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// The transition is diagonal plus low rank: what is read by a is written again by b. q, k, a, b, g [B,T,H,K], v
// [B,T,H,V], state [B|N,H,K,V]; heads broadcast (see primitives/common.h). g: natural log, <= 0, -inf allowed. a and b
// are used as given; RWKV-7 has |a| = 1 and b = -a ⊙ r with r in (0, 1), which keeps the state bounded. scale: default
// K^-1/2. cu_seqlens: packed sequences, B = 1. Returns (o, final_state).
TensorTuple<2> dplr_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& a, const Tensor& b,
                         const Tensor& g, std::optional<double> scale = {}, const OptionalTensor& initial_state = {},
                         const OptionalTensor& cu_seqlens = {});

// The definition, token by token, for any dtype and differentiable by autograd. Tests compare against it.
TensorTuple<2> dplr_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& a, const Tensor& b,
                                   const Tensor& g, std::optional<double> scale = {},
                                   const OptionalTensor& initial_state = {}, const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
