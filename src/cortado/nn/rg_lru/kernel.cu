// The RG-LRU's gates, their gradient, and one token of the whole unit; see rg_lru_gpu.h.
#include "cortado/nn/rg_lru/rg_lru_gpu-inl.h"
#include "cortado/nn/rg_lru/rg_lru_step_gpu-inl.h"

extern "C" __global__ void __launch_bounds__(128) rg_lru_gates(const cortado::elementwise::GpuRgLru in) {
  cortado::elementwise::rg_lru_gates(in);
}

extern "C" __global__ void __launch_bounds__(128) rg_lru_gates_gradient(const cortado::elementwise::GpuRgLru in) {
  cortado::elementwise::rg_lru_gates_gradient(in);
}

extern "C" __global__ void __launch_bounds__(256) rg_lru_step(const cortado::elementwise::GpuRgLruStep in) {
  cortado::elementwise::rg_lru_step(in);
}
