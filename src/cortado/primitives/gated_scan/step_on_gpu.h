// One token of a scan by a GPU kernel.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/gated_scan/scan.h"

namespace cortado::gated {

// Whether the kernel computes this: float32 sums on a GPU on which kernels can run; at most 128 keys, or at most 128
// values if read along the values.
bool gpu_takes_step(const ScanCall& call);

// Returns the read [B,1,H,*] in the values' type, if the form wants it, and the state [B,Hs,K,V].
FormOutputs step_on_gpu(const ScanCall& call, cuda::Machine& machine);

}  // namespace cortado::gated
