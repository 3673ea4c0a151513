// The arguments of the GPU kernel for an RMS norm of a few rows: sizes and pointers. Read by C++ and by NVRTC: nothing
// is included.
#pragma once

namespace cortado::token {

// y = x / rms(x) ⊙ weight, [rows, groups · width] in 16 bits, for each group by itself. Computed in float32 and rounded
// before the multiplication by the weight, as in Llama. With `branch` it norms x + branch, which is rounded and written
// to `sum`.
struct GpuNorm {
  const void *x, *branch;  // branch: or null
  const void* weight;      // 16-bit [groups · width]
  void *sum, *y;
  int groups, width;  // width is a multiple of 8
  float eps;
};

constexpr int kGpuNormThreads = 128;  // per block; a block has one group of one row, grid: (groups, rows)
constexpr int kGpuNormBytes = kGpuNormThreads * 4;

}  // namespace cortado::token
