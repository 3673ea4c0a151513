// elementwise_scan: h_t = exp(log_a_t) ⊙ h_{t-1} + b_t.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// log_a, b, h [B,T,D]; initial and final state [B|N,D]; real (log_a <= 0, -inf allowed) or complex types.
TensorTuple<2> elementwise_scan(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial_state = {},
                                const OptionalTensor& cu_seqlens = {}, bool reverse = false);

// The definition, token by token; differentiable by autograd.
TensorTuple<2> elementwise_scan_reference(const Tensor& log_a, const Tensor& b,
                                          const OptionalTensor& initial_state = {},
                                          const OptionalTensor& cu_seqlens = {}, bool reverse = false);

// m_t = max(m_{t-1} - decay, x_t) along dim 1 of x [B,T,H,L]; m_0 = initial [B|N,H,L] or -inf, decay [H,L] or 0.
// Returns m_t, m_{t-1} (both [B,T,H,L]) and the last m [B|N,H,L], float32 or float64. Not differentiable: results
// computed with a running maximum do not depend on its value.
TensorTuple<3> running_max(const Tensor& x, const OptionalTensor& initial = {}, const OptionalTensor& cu_seqlens = {},
                           const OptionalTensor& decay = {});

}  // namespace cortado
