// One token's numbers as GPU kernels see them. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::cuda {

// One token [B, heads, width], last dimension contiguous; float32 or 16-bit.
struct GpuToken {
  const void* data;  // null: not given
  long long batch, head;
  int heads;  // divides the state's head count; for a query, the output's
  int is_short;
};

constexpr int kGpuStepThreads = 128;  // per block

}  // namespace cortado::cuda
