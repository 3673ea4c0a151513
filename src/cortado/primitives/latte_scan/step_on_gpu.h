// One token of Latte by a GPU kernel.
#pragma once

#include "cortado/primitives/latte_scan/on_gpu.h"

namespace cortado::latent {

// Whether the kernel computes this: one token per row, types of at most 32 bits, a GPU on which kernels can run, L up
// to 128.
bool gpu_takes_step(const GpuLatteInputs& in);

LatteResult step_on_gpu(const GpuLatteInputs& in, cuda::Machine& machine);

// One token of Macchiato: in.query has one more logit, the first, for the state whose value is `near` [B,1,heads,V].
LatteResult mixed_step_on_gpu(const GpuLatteInputs& in, const Tensor& near, cuda::Machine& machine);

}  // namespace cortado::latent
