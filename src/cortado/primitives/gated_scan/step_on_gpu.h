// One token of a scan by the kernel for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/scan.h"

namespace cortado::gated {

// Whether it computes this: float32 sums on a GPU that has kernels, up to 128 keys, or where it is read along the values up
// to 128 of these.
bool gpu_takes_step(const ScanCall& call);

// (o [B,1,H,*] in the values' type, state [B,Hs,K,V])
TensorTuple<2> step_on_gpu(const ScanCall& call, cuda::Machine& machine);

}  // namespace cortado::gated
