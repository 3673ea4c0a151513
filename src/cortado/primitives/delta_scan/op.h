// delta_scan: S_t = S' + k_t ⊗ beta_t (v_t - S'ᵀ k_t), S' = diag(exp g_t) S_{t-1}, o_t = S_tᵀ q_t · scale.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

namespace cortado {

using at::Tensor;

// q, k [B,T,H,K], v [B,T,H,V], beta [B,T,H], state [B|N,H,K,V]; heads broadcast (see primitives/common.h).
// g: natural log, <= 0, -inf allowed: [B,T,H,K], [B,T,H], [H], [H,K], or none. k is used as given: with |k|² beta > 2
// the recurrence itself diverges, so normalise it before. scale default K^-1/2. cu_seqlens: packed sequences, B = 1.
// Returns (o, final_state).
std::tuple<Tensor, Tensor> delta_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                      const std::optional<Tensor>& g = {}, std::optional<double> scale = {},
                                      const std::optional<Tensor>& initial_state = {},
                                      const std::optional<Tensor>& cu_seqlens = {});

// The definition, token by token, any dtype, differentiable by autograd: the judge.
std::tuple<Tensor, Tensor> delta_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                                const std::optional<Tensor>& g = {}, std::optional<double> scale = {},
                                                const std::optional<Tensor>& initial_state = {},
                                                const std::optional<Tensor>& cu_seqlens = {});

}  // namespace cortado
