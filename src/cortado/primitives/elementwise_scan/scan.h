// The chunked ATen forms of the elementwise scan and of the running maximum, on dense batches.
#pragma once

#include <ATen/ATen.h>

namespace cortado {

using at::Tensor;

// h_t = exp(log_a_t) ⊙ h_{t-1} + b_t over dim 1 of [B,T,D] tensors of one type, h_0 = `initial` [B,D] or undefined
// (zero). `reverse` runs from the last token to the first. Memory O(T).
Tensor scan_dense(const Tensor& log_a, const Tensor& b, const Tensor& initial, bool reverse);

// m_t = max(m_{t-1} - decay, x_t) over dim 1 of [B,T,D], m_0 = `initial` [B,D] or undefined (-inf); decay [D] or
// undefined (0).
Tensor running_max_dense(const Tensor& x, const Tensor& initial, const Tensor& decay = {});

}  // namespace cortado
