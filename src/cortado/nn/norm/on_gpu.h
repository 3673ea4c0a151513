// RMS norms under autocast by kernels for GPUs, with the addition before them, and their gradients.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::norm {

// What is normed, x + branch or x itself, y in 16 bits, and 1 / rms of every row, float32.
struct Normed {
  Tensor sum, y, scale;
};
struct Gradients {
  Tensor x, branch, weight;
};

// Whether they norm x [..., D], a branch that is added to it (undefined: none): x float32, or without a branch of
// autocast's type, which the branch has; weight float32 [D], D a multiple of 4 up to 6,144; on a GPU that has kernels,
// under autocast.
bool gpu_takes(const Tensor& x, const Tensor& branch, const Tensor& weight);

Normed norm_on_gpu(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, at::ScalarType type,
                   cuda::Machine& machine);
// Of what was normed. grad_sum of its type, or undefined.
Gradients norm_gradient_on_gpu(const Tensor& sum, const Tensor& scale, const Tensor& weight, const Tensor& grad_y,
                               const Tensor& grad_sum, bool has_branch, cuda::Machine& machine);

// x + branch (or x) and its norm y, in autocast's type; differentiable, and both ways to x have one gradient.
struct OfSum {
  Tensor sum, y;
};
OfSum norm_of_sum(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps);

}  // namespace cortado::norm
