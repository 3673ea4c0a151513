// The softmax over time by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado::softmax {

// time_softmax for float32. `parts`: parts of time; 0: as many as fill the GPU.
TimeSoftmax on_gpu(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum, const Bounds& bounds,
                   cuda::Machine& machine, int64_t parts = 0);

}  // namespace cortado::softmax
