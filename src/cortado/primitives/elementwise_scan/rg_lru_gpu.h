// What the RG-LRU's scan takes (nn/rg_lru.h), on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::elementwise {

// Rows of numbers without gaps: bfloat16 or float32.
struct GpuNumbers {
  void* data;
  int is_short;
};

// log_a = sigma(r) slope and b = sqrt(1 - a^2) sigma(i) x; rows that are `first` keep all: b = sigma(i) x. In the backward
// the square root's derivative is held at `largest_slope`; dslope comes as sums of kRgLruRows rows each.
struct GpuRgLru {
  GpuNumbers r, i, x;          // [rows, width]
  const float* slope;          // [width]
  const unsigned char* first;  // [rows]
  float *log_a, *b;            // [rows, width]
  const float *dlog_a, *db;
  GpuNumbers dr, di, dx;  // of the types of r, i and x
  float* dslope;          // [blocks of rows, width]
  int rows, width;        // width is even
  float largest_slope;
};

constexpr int kRgLruThreads = 128, kRgLruRows = 32;  // of a block, whose threads have two channels each

}  // namespace cortado::elementwise
