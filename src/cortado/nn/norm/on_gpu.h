// RMS norms under autocast, with the addition before them, and their gradients, by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::norm {

// The norm's input (x + branch, or x), y in 16 bits, and 1 / rms per row in float32.
struct Normed {
  Tensor sum, y, scale;
};
struct Gradients {
  Tensor x, branch, weight;
};

// Whether the kernels norm x [..., D] with a branch that is added to it (undefined: none), under autocast on a GPU on
// which kernels can run. x is float32, or autocast's type if there is no branch; the branch has autocast's type; weight
// is float32 [D], D a multiple of 4 up to 6,144.
bool gpu_takes(const Tensor& x, const Tensor& branch, const Tensor& weight);

Normed norm_on_gpu(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, at::ScalarType type,
                   cuda::Machine& machine);
// `sum`: the norm's input. grad_sum has its type, or is undefined.
Gradients norm_gradient_on_gpu(const Tensor& sum, const Tensor& scale, const Tensor& weight, const Tensor& grad_y,
                               const Tensor& grad_sum, bool has_branch, cuda::Machine& machine);

// x + branch (or x) and its norm y in autocast's type; differentiable. Both outputs contribute to one gradient of x.
struct OfSum {
  Tensor sum, y;
};
OfSum norm_of_sum(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps);

}  // namespace cortado::norm
