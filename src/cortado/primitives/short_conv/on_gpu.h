// The short convolution by the kernels for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/operator.h"

namespace cortado::convolution {

// Of short_conv (op.h).
struct GpuInputs {
  Tensor x, weight, bias, initial;  // the last two may be undefined
  bool silu;
};

// Whether they compute this: an even number of channels, up to 8 taps, on a GPU that has kernels.
bool gpu_takes(const GpuInputs& in, const Bounds& bounds);

// (y in x's type, final state in float32)
TensorTuple<2> forward_on_gpu(const GpuInputs& in, const Bounds& bounds, cuda::Machine& machine);
// x's in its type; in float32 those of the weight [D,W], the bias and the initial state, given or not.
TensorTuple<4> backward_on_gpu(const GpuInputs& in, const Bounds& bounds, const Tensor& grad_y,
                               const Tensor& grad_final, cuda::Machine& machine);

}  // namespace cortado::convolution
