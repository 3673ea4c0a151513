// One token of a scan by the kernel for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/scan.h"

namespace cortado::gated {

// Whether it computes this: float32 sums on a GPU that has kernels, up to 128 keys, or where it is read along the values up
// to 128 of these.
bool gpu_takes_step(const ScanCall& call);

// The read [B,1,H,*] in the values' type, where the form has it, and the state [B,Hs,K,V].
FormOutputs step_on_gpu(const ScanCall& call, cuda::Machine& machine);

}  // namespace cortado::gated
