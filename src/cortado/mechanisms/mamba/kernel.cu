// Mamba's selective scan. kernel_gpu.h declares its arguments; scan_gpu-inl.h has the algorithm.
//
// Variants: STATES=16 | STATES=32 | STATES=64
#include "cortado/mechanisms/mamba/scan_gpu-inl.h"

#ifndef STATES
#define STATES 16
#endif

extern "C" __global__ void __launch_bounds__(256) selective_scan(const cortado::mamba_kernel::GpuSelective in) {
  cortado::mamba_kernel::Selective<STATES>(in).run();
}

extern "C" __global__ void __launch_bounds__(256) selective_gradient(const cortado::mamba_kernel::GpuSelective in) {
  cortado::mamba_kernel::SelectiveGradient<STATES>(in).run();
}
