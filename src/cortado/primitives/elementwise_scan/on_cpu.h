// The kernel behind scan.h, for torch's tensors.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <utility>
#include <vector>

namespace cortado::elementwise {

using at::Tensor;

// Whether the kernel computes with sums of this type on these tensors: float32 sums, ordinary CPU tensors.
bool kernel_takes(at::ScalarType type, const Tensor& log_a, const Tensor& b);

// (h, final state) in float32. initial [rows,D] or undefined; `bounds` of packed sequences, or null.
std::pair<Tensor, Tensor> forward_by_kernel(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                            const std::vector<int64_t>* bounds, bool reverse);

// In float32: gradients of log_a, b and of the initial state (whether or not there was one). h is the forward's.
struct Gradients {
  Tensor log_a, b, initial;
};
Gradients backward_by_kernel(const Tensor& grad_h, const Tensor& grad_final, const Tensor& log_a, const Tensor& h,
                             const Tensor& initial, const std::vector<int64_t>* bounds, bool reverse);

}  // namespace cortado::elementwise
