// elementwise_scan: h_t = exp(log_a_t) ⊙ h_{t-1} + b_t.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

namespace cortado {

using at::Tensor;

// log_a, b, h [B,T,D]; initial and final state [B|N,D]; real (log_a <= 0, -inf allowed) or complex types.
std::tuple<Tensor, Tensor> elementwise_scan(const Tensor& log_a, const Tensor& b,
                                            const std::optional<Tensor>& initial_state = {},
                                            const std::optional<Tensor>& cu_seqlens = {}, bool reverse = false);

// The definition, token by token; differentiable by autograd.
std::tuple<Tensor, Tensor> elementwise_scan_reference(const Tensor& log_a, const Tensor& b,
                                                      const std::optional<Tensor>& initial_state = {},
                                                      const std::optional<Tensor>& cu_seqlens = {},
                                                      bool reverse = false);

// m_t = max(m_{t-1} - decay, x_t) along dim 1 of x [B,T,H,L], m_0 = initial [B|N,H,L] or -inf, decay [H,L] or 0.
// Returns m_t, m_{t-1} (both [B,T,H,L]) and the last m [B|N,H,L], float32 or float64. Not differentiable: what is
// computed with a running maximum does not depend on it.
std::tuple<Tensor, Tensor, Tensor> running_max(const Tensor& x, const std::optional<Tensor>& initial = {},
                                               const std::optional<Tensor>& cu_seqlens = {},
                                               const std::optional<Tensor>& decay = {});

}  // namespace cortado
