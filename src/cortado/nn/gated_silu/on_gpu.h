// The gated SiLU by kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::fused {

// Whether they compute silu(gate) ⊙ up: both of one size and 16-bit type, a multiple of 8 numbers, on a GPU that has
// kernels.
bool gpu_takes(const Tensor& gate, const Tensor& up);

Tensor gated_silu_on_gpu(const Tensor& gate, const Tensor& up, cuda::Machine& machine);
struct GatedSiluGradients {
  Tensor gate, up;
};
GatedSiluGradients gated_silu_gradient_on_gpu(const Tensor& gate, const Tensor& up, const Tensor& grad_y,
                                              cuda::Machine& machine);

// The same, differentiable, where the tensors are.
Tensor gpu_gated_silu(const Tensor& gate, const Tensor& up);

}  // namespace cortado::fused
