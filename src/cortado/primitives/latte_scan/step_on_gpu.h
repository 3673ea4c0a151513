// One token of Latte by the kernel for GPUs.
#pragma once

#include "cortado/primitives/latte_scan/on_gpu.h"

namespace cortado::latent {

// Whether it computes this: one token of each row, numbers of at most float32 on a GPU that has kernels, L up to 128.
bool gpu_takes_step(const GpuLatteInputs& in);

LatteResult step_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine);

}  // namespace cortado::latent
