// The gated SiLU and its gradient; see gated_silu_gpu.h.
// Variants: | CORTADO_HALF
#include "cortado/nn/gated_silu/gated_silu_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(256) gated_silu(const cortado::fused::GpuGatedSilu in) {
  cortado::fused::gated_silu(in);
}

extern "C" __global__ void __launch_bounds__(256) gated_silu_gradient(const cortado::fused::GpuGatedSilu in) {
  cortado::fused::gated_silu_gradient(in);
}
