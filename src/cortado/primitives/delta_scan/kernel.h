// The delta scan's kernel: float32 arithmetic on the CPU, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/gated_scan/kernel.h"

namespace cortado::delta {

// The gated scan of (k, u), read along the keys: y = q, x = k, w = ∂L/∂o; its v are the values to store, and what is
// stored instead, u = beta (v - S'ᵀk), the kernel finds. Forward: dw = o. Backward: dy, dx, dv, dbeta, and dg.
struct ScanKernel : gated::ScanKernel {
  kernels::Timed beta = {}, dbeta = {};  // [B,T,h]
};

// Every result is the same, bit for bit, on any number of threads.
void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel);

// One token, forward; as gated::run_step.
void run_step(const ScanKernel& scan, const kernels::Parallel& parallel);

}  // namespace cortado::delta
