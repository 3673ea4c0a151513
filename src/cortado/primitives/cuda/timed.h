// A tensor as GPU kernels see it. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::cuda {

// [B, T, heads, width] with a contiguous last dimension; strides in elements. Packed: B = 1.
struct GpuTimed {
  void* data;
  long long batch, head;
  int token;
  int heads;  // divides the operator's head count
};

// Elementwise kernels (rows.h): eight or sixteen lanes share a row of up to `width` numbers.
constexpr int kRowThreads = 256;  // per block
constexpr int row_lanes(int width) { return width <= 64 ? 8 : 16; }
constexpr int rows_of_block(int width) { return kRowThreads / row_lanes(width); }

}  // namespace cortado::cuda
