// The kernel of the short convolution, for torch's tensors.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace cortado::convolution {

using at::Tensor;

// Undefined: not given. `bounds` of packed sequences, or null.
struct Arguments {
  const Tensor &x, &weight;
  Tensor bias, initial;
  bool silu;
  const std::vector<int64_t>* bounds;
};

// Whether the kernel computes with sums of this type on these tensors: float32 sums, ordinary CPU tensors.
bool kernel_takes(at::ScalarType type, const Arguments& in);

// (y in x's type, final state in float32)
std::pair<Tensor, Tensor> forward_by_kernel(const Arguments& in);

// x's gradient in its type; in float32 those of the weight [D,W], the bias and the initial state, given or not.
struct Gradients {
  Tensor x, weight, bias, initial;
};
Gradients backward_by_kernel(const Arguments& in, const Tensor& grad_y, const Tensor& grad_final);

}  // namespace cortado::convolution
