// The arguments of the gated SiLU's GPU kernels: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::fused {

// y = silu(gate) ⊙ up; silu is rounded before the multiplication, as by two operators. Contiguous 16-bit numbers.
// Backward: dgate = dy ⊙ up ⊙ silu'(gate), dup = dy ⊙ silu(gate).
struct GpuGatedSilu {
  const void *gate, *up, *grad_y;
  void *y, *grad_gate, *grad_up;
  long long count;  // a multiple of 8
};

constexpr int kGpuSiluThreads = 256;  // per block; each thread has eight numbers

}  // namespace cortado::fused
