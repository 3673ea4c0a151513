// The delta scan on the CPU in float32 arithmetic, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/gated_scan/kernel.h"

namespace cortado::delta {

// The gated scan of (k, u), read along the keys, with y = q, x = k, w = ∂L/∂o and v the values to store. The kernel
// computes what is stored instead of v, u = beta (v - S'ᵀk). Forward: dw = o. Backward: dy, dx, dv, dbeta and dg.
struct ScanKernel : gated::ScanKernel {
  kernels::Timed beta = {}, dbeta = {};  // [B,T,h]
};

// Results are bit-identical on any number of threads.
void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel);

// One token, forward; see gated::run_step.
void run_step(const ScanKernel& scan, const kernels::Parallel& parallel);

}  // namespace cortado::delta
