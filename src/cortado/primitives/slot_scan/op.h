// slot_scan: S_t = diag(decay_t) S_{t-1} + w_t ⊗ x_t over M slots, decays in linear space.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// w, decay [B,T,H,M], or [T,M] shared by all rows and heads; x [B,T,H,X]; state [B|N,H,M,X]. A decay is the factor on
// its slot: any finite value, including 0, negative ones and ones above 1.
//
//   read "slot":     q [B,T,H,M], o_t = S_tᵀ q_t · scale [B,T,H,X], scale default 1.
//   read "channel":  q [B,T,H,X], o_t = S_t q_t · scale  [B,T,H,M], scale default X^-1/2.
//
// Heads broadcast. cu_seqlens: packed sequences, B = 1. Returns (o, final_state).
TensorTuple<2> slot_scan(const Tensor& q, const Tensor& w, const Tensor& x, const Tensor& decay,
                         std::string_view read = "slot", std::optional<double> scale = {},
                         const OptionalTensor& initial_state = {}, const OptionalTensor& cu_seqlens = {});

// The definition, token by token, for any dtype and differentiable by autograd. Tests compare against it.
TensorTuple<2> slot_scan_reference(const Tensor& q, const Tensor& w, const Tensor& x, const Tensor& decay,
                                   std::string_view read = "slot", std::optional<double> scale = {},
                                   const OptionalTensor& initial_state = {}, const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
