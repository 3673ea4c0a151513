// RMS norms of training under autocast, on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::norm {

// A row's numbers, float32 or of 16 bits.
struct GpuRow {
  void* data;
  int is_short;
};

// y = x / rms(x) ⊙ weight in 16 bits, summed and scaled in float32; with `branch` of x + branch, which is left in `sum`.
// x is float32 or, without a branch, of 16 bits.
struct GpuNorm {
  GpuRow x;            // [rows, width]; backward: what was normed
  const void* branch;  // 16-bit, or null
  const float* weight;
  float* sum;
  void* y;
  float* scale;  // [rows]: 1 / rms
  // Backward: reads x, scale, weight and dy. dx has dsum, where there is one, and what is behind the norm; dbranch the
  // same in 16 bits; dweights [row slots, width] what is to be added up.
  const void* grad_y;
  const float* grad_sum;  // or null
  GpuRow grad_x;
  void* grad_branch;  // or null
  float* grad_weights;
  int rows, width, blocks;  // width is a multiple of 4
  float eps;
};

constexpr int kGpuNormWarps = 8;   // of a block
constexpr int kGpuNormPieces = 6;  // of four numbers that a thread has of a row, at most
constexpr int kGpuNormBytes = 2 * kGpuNormWarps * 4;
constexpr int kGpuNormWidest = 4 * 32 * kGpuNormWarps * kGpuNormPieces;

// Warps that share a row, and pieces of a thread.
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
