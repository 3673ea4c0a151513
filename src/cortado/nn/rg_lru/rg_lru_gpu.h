// What the RG-LRU's scan takes (nn/rg_lru/rg_lru.h), on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::elementwise {

// Numbers [rows, width], bfloat16 or float32, in blocks of channels: number c of a row lies in block c / size, blocks `far`
// numbers apart, whose rows have `size` numbers. A matrix without gaps is one block.
struct GpuNumbers {
  void* data;
  int is_short, size;
  long long far;
};

// With r and i with their biases: log_a = sigma(r) slope and b = sqrt(1 - a^2) sigma(i) x; rows that are `first` keep all:
// b = sigma(i) x. In the backward the square root's derivative is held at `largest_slope`; dslope and the biases' come as
// sums of kRgLruRows rows each.
struct GpuRgLru {
  GpuNumbers r, i, x;
  const float *slope, *r_bias, *i_bias;  // [width]
  const unsigned char* first;            // [rows]
  float *log_a, *b;                      // [rows, width]
  const float *dlog_a, *db;
  GpuNumbers dr, di, dx;              // as r, i and x
  float *dslope, *dr_bias, *di_bias;  // [blocks of rows, width]
  int rows, width;                    // width and the blocks' size are even
  float largest_slope;
};

// One token of the whole RG-LRU (nn/rg_lru/rg_lru.h) in bfloat16: the gates' block-diagonal products, rounded as matrices'
// products are, then h = a start + b as above, in float32, and y = h in bfloat16. slope = -sharpness softplus(lambda);
// position 0: the token is the first.
struct GpuRgLruStep {
  const void *x, *r_weight, *r_bias, *i_weight, *i_bias;  // x [rows, width]; weights [heads, size, size] (in, out)
  const void* lambda;                                     // [width]
  const long long* position;                              // [rows]
  const float* start;                                     // [rows, width]
  float* h;
  void* y;
  int heads, size;  // width = heads size; size is even
  float sharpness;
};

constexpr int kRgLruStepThreads =
    256;  // of a block, which has 64 channels of a head of a row: (64 channels, heads, rows)
constexpr int kRgLruStepChannels = 64;
constexpr int kRgLruStepBytes = 2 * kRgLruStepThreads * 2 * 4;

constexpr int kRgLruThreads = 128, kRgLruRows = 32;  // of a block, whose threads have two channels each

}  // namespace cortado::elementwise
