// Rotary positions; see rotary_gpu.h.
#include "cortado/nn/rotary/rotary_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(256) rotary(const cortado::window::GpuRotary in) {
  cortado::window::turn(in);
}

extern "C" __global__ void __launch_bounds__(256) rotary_token(const cortado::window::GpuTokenRotary in) {
  cortado::window::turn_token(in);
}
