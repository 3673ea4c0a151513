// One token of Latte by the kernel for GPUs.
#pragma once

#include "cortado/primitives/latte_scan/on_gpu.h"

namespace cortado::latent {

// Whether it computes this: one token of each row, numbers of at most float32 on a GPU that has kernels, L up to 128.
bool gpu_takes_step(const GpuLatteInputs& in);

LatteResult step_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine);

// A token of Macchiato: in.query has a logit more, the first, of the state whose values are `near` [B,1,heads,V].
LatteResult mixed_step_on_gpu(const GpuLatteInputs& in, const Tensor& near, cuda::Machine& machine);

}  // namespace cortado::latent
