// Torch's side of the kernels for GPUs: tensors as they read them.
#pragma once

#include <ATen/ATen.h>

#include "cortado/primitives/cuda/timed.h"

namespace cortado::cuda {

using at::Tensor;

// [B,T,h,width], or a copy, whose rows are pieces of 16 bytes.
Tensor in_pieces(const Tensor& x);

// [B|1,T,h] or [B|1,T,h,width]; undefined: no data. One batch row stands for all.
GpuTimed timed(const Tensor& x);

}  // namespace cortado::cuda
