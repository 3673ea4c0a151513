// The gated SiLU by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::fused {

// Whether the kernels compute silu(gate) ⊙ up: equal sizes and 16-bit types, a multiple of 8 numbers, a GPU on which
// kernels can run.
bool gpu_takes(const Tensor& gate, const Tensor& up);

Tensor gated_silu_on_gpu(const Tensor& gate, const Tensor& up, cuda::Machine& machine);
struct GatedSiluGradients {
  Tensor gate, up;
};
GatedSiluGradients gated_silu_gradient_on_gpu(const Tensor& gate, const Tensor& up, const Tensor& grad_y,
                                              cuda::Machine& machine);

// gated_silu_on_gpu on the tensors' GPU, differentiable.
Tensor gpu_gated_silu(const Tensor& gate, const Tensor& up);

}  // namespace cortado::fused
