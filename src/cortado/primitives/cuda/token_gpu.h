// One token's numbers as a kernel for GPUs sees them. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::cuda {

// [B, heads, width] of one token, its last dimension without gaps; float32, or of bfloat16.
struct GpuToken {
  const void* data;  // null: not there
  long long batch, head;
  int heads;  // divides the state's; of a query the output's
  int is_short;
};

constexpr int kGpuStepThreads = 128;  // of a block

}  // namespace cortado::cuda
