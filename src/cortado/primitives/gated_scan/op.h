// gated_scan: S_t = diag(exp g_t) S_{t-1} + k_t ⊗ v_t, read along the keys or along the values.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// k [B,T,H,K], v [B,T,H,V], state [B|N,H,K,V]; heads broadcast (form.h). g: natural log, <= 0, -inf allowed: [B,T,H,K],
// [B,T,H], [H], [H,K], or none.
//
//   read "key":    q [B,T,H,K], o_t = S_tᵀ q_t · scale  [B,T,H,V], scale default K^-1/2.
//   read "value":  q [B,T,H,V], o_t = S_t q_t · scale   [B,T,H,K], scale default 1.
//
// bonus [H,K] (read "key"): reads before it writes, o_t = (S_{t-1} + diag(bonus) k_t ⊗ v_t)ᵀ q_t · scale. reverse: time
// runs backwards. cu_seqlens: packed sequences, B = 1. Returns (o, final_state). Errors are one line.
TensorTuple<2> gated_scan(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g = {},
                          std::string_view read = "key", std::optional<double> scale = {},
                          const OptionalTensor& bonus = {}, const OptionalTensor& initial_state = {},
                          const OptionalTensor& cu_seqlens = {}, bool reverse = false);

// gated_scan with o in the type of the sums (float32, or float64 if any input is float64) instead of v's: for scores of
// a softmax.
TensorTuple<2> gated_scores(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                            std::string_view read, std::optional<double> scale, const OptionalTensor& initial_state,
                            const OptionalTensor& cu_seqlens);

// The definition, token by token, for any dtype and differentiable by autograd. Tests compare against it.
TensorTuple<2> gated_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g = {},
                                    std::string_view read = "key", std::optional<double> scale = {},
                                    const OptionalTensor& bonus = {}, const OptionalTensor& initial_state = {},
                                    const OptionalTensor& cu_seqlens = {}, bool reverse = false);

}  // namespace cortado
