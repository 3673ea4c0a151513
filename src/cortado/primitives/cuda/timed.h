// A tensor as a kernel for GPUs sees it. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::cuda {

// [B, T, heads, width] in memory, its last dimension without gaps; strides in numbers. Packed: B = 1.
struct GpuTimed {
  void* data;
  long long batch, head;
  int token;
  int heads;  // divides the operator's
};

}  // namespace cortado::cuda
