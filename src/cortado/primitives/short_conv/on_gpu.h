// The short convolution by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/operator.h"

namespace cortado::convolution {

// Inputs of short_conv (op.h).
struct GpuInputs {
  Tensor x, weight, bias, initial;  // the last two may be undefined
  bool silu;
};

// Whether the kernels compute this: an even number of channels, up to 8 taps, a GPU on which kernels can run.
bool gpu_takes(const GpuInputs& in, const Bounds& bounds);

// Returns y in x's type and the final state in float32.
TensorTuple<2> forward_on_gpu(const GpuInputs& in, const Bounds& bounds, cuda::Machine& machine);
// Returns the gradients of x, in its type, and in float32 those of the weight [D,W], the bias and the initial state,
// also if these were not given.
TensorTuple<4> backward_on_gpu(const GpuInputs& in, const Bounds& bounds, const Tensor& grad_y,
                               const Tensor& grad_final, cuda::Machine& machine);

}  // namespace cortado::convolution
