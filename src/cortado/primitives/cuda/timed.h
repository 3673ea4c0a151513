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

// Kernels that go through rows number by number (rows.h): eight or sixteen lanes have a row of up to `width` numbers.
constexpr int kRowThreads = 256;  // of a block
constexpr int row_lanes(int width) { return width <= 64 ? 8 : 16; }
constexpr int rows_of_block(int width) { return kRowThreads / row_lanes(width); }

}  // namespace cortado::cuda
