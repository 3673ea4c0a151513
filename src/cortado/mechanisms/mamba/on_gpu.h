// Mamba's selective scan by the GPU kernel.
#pragma once

#include "cortado/mechanisms/mamba/op.h"
#include "cortado/primitives/cuda/machine.h"

namespace cortado::mamba_kernel {

// Whether the kernel computes this call: float32 on a GPU with kernels, N up to 64.
bool gpu_takes(const SelectiveScan& in, const Tensor& start);

// As selective_scan(): returns y and the final states [rows,E,N]. `bounds` are those of packed sequences, or null.
TensorTuple<2> scan_on_gpu(const SelectiveScan& in, const Tensor& start, const std::vector<int64_t>* bounds,
                           cuda::Machine& machine);

// Returns the gradients of x, step, a, b, c and start. An undefined dlast stands for 0.
std::vector<Tensor> differentiate_on_gpu(const SelectiveScan& in, const Tensor& start,
                                         const std::vector<int64_t>* bounds, const Tensor& dy, const Tensor& dlast,
                                         cuda::Machine& machine);

}  // namespace cortado::mamba_kernel
