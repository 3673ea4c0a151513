// An RMS norm of a few rows on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::token {

// y = x / rms(x) ⊙ weight, [rows, groups · width] of 16 bits, every group by itself, in float32 and rounded before the
// weight is met, as in the Llamas. With `branch` of x + branch, which is rounded and left in `sum`.
struct GpuNorm {
  const void *x, *branch;  // branch: null: none
  const void* weight;      // 16-bit [groups · width]
  void *sum, *y;
  int groups, width;  // width is a multiple of 8
  float eps;
};

constexpr int kGpuNormThreads = 128;  // of a block, which has a group of a row: (groups, rows)
constexpr int kGpuNormBytes = kGpuNormThreads * 4;

}  // namespace cortado::token
