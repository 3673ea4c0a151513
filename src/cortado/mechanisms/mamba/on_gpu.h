// Mamba's selective scan by the kernel for GPUs.
#pragma once

#include "cortado/mechanisms/mamba/op.h"
#include "cortado/primitives/cuda/machine.h"

namespace cortado::mamba_kernel {

// Whether it computes this: float32 on a GPU that has kernels, N up to 64.
bool gpu_takes(const SelectiveScan& in, const Tensor& start);

// selective_scan: y and the last states [rows,E,N]. `bounds`: of packed sequences, or null.
TensorTuple<2> scan_on_gpu(const SelectiveScan& in, const Tensor& start, const std::vector<int64_t>* bounds,
                           cuda::Machine& machine);

// Its gradient, of x, step, a, b, c and start. dlast may be undefined: 0.
std::vector<Tensor> differentiate_on_gpu(const SelectiveScan& in, const Tensor& start,
                                         const std::vector<int64_t>* bounds, const Tensor& dy, const Tensor& dlast,
                                         cuda::Machine& machine);

}  // namespace cortado::mamba_kernel
