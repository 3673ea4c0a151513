// The gated SiLU on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::fused {

// y = silu(gate) ⊙ up, silu rounded before it is multiplied, as by two operators. 16-bit numbers without gaps.
// Backward: dgate = dy ⊙ up ⊙ silu'(gate), dup = dy ⊙ silu(gate).
struct GpuGatedSilu {
  const void *gate, *up, *grad_y;
  void *y, *grad_gate, *grad_up;
  long long count;  // a multiple of 8
};

constexpr int kGpuSiluThreads = 256;  // of a block, each with eight numbers

}  // namespace cortado::fused
