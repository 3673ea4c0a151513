// The arguments of the GPU kernels for RMS norms under autocast in training: sizes and pointers. Read by C++ and by
// NVRTC: nothing is included.
#pragma once

namespace cortado::norm {

// Numbers of a row, float32 or 16-bit.
struct GpuRow {
  void* data;
  int is_short;
};

// y = x / rms(x) ⊙ weight in 16 bits, computed in float32. With `branch` it norms x + branch, which is written to
// `sum`. x is float32, or 16-bit if there is no branch.
struct GpuNorm {
  GpuRow x;            // [rows, width]; backward: the norm's input
  const void* branch;  // 16-bit, or null
  const float* weight;
  float* sum;
  void* y;
  float* scale;  // [rows]: 1 / rms
  // Backward: reads x, scale, weight and dy. dx is the sum of the norm's gradient and dsum, if given; dbranch is dx in
  // 16 bits; dweights [row slots, width] holds partial sums.
  const void* grad_y;
  const float* grad_sum;  // or null
  GpuRow grad_x;
  void* grad_branch;  // or null
  float* grad_weights;
  int rows, width, blocks;  // width is a multiple of 4
  float eps;
};

constexpr int kGpuNormWarps = 8;   // per block
constexpr int kGpuNormPieces = 6;  // pieces of four numbers per thread and row, at most
constexpr int kGpuNormBytes = 2 * kGpuNormWarps * 4;
constexpr int kGpuNormWidest = 4 * 32 * kGpuNormWarps * kGpuNormPieces;

// Warps per row, and pieces per thread.
constexpr int gpu_norm_warps(int width) {
  int warps = 1;
  while (warps * 128 * kGpuNormPieces < width) warps *= 2;
  return warps;
}
constexpr int gpu_norm_pieces(int width) {
  const int step = 128 * gpu_norm_warps(width);
  return (width + step - 1) / step;
}

}  // namespace cortado::norm
