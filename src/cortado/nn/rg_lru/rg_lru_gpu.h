// The arguments of the RG-LRU's GPU kernels (nn/rg_lru/rg_lru.h): sizes and pointers. Read by C++ and by NVRTC: nothing
// is included.
#pragma once

namespace cortado::elementwise {

// Numbers [rows, width], bfloat16 or float32, in blocks of channels. Number c of a row lies in block c / size. Blocks
// are `far` numbers apart and their rows have `size` numbers. A contiguous matrix is one block.
struct GpuNumbers {
  void* data;
  int is_short, size;
  long long far;
};

// With biases added to r and i: log_a = sigma(r) slope and b = sqrt(1 - a^2) sigma(i) x, or b = sigma(i) x in rows
// marked `first`. The backward limits the square root's derivative to `largest_slope`; dslope and the biases' gradients
// are partial sums of kRgLruRows rows each.
struct GpuRgLru {
  GpuNumbers r, i, x;
  const float *slope, *r_bias, *i_bias;  // [width]
  const unsigned char* first;            // [rows]
  float *log_a, *b;                      // [rows, width]
  const float *dlog_a, *db;
  GpuNumbers dr, di, dx;              // laid out as r, i and x
  float *dslope, *dr_bias, *di_bias;  // [blocks of rows, width]
  int rows, width;                    // width and the blocks' size are even
  float largest_slope;
};

// One token of the whole RG-LRU (nn/rg_lru/rg_lru.h) in bfloat16: the gates' block-diagonal products, rounded as matrix
// products are; then h = a start + b as above in float32, and y = h in bfloat16. slope = -sharpness softplus(lambda).
// position 0: a sequence's first token.
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
    256;  // per block, which has 64 channels of one head and row; grid: (channels / 64, heads, rows)
constexpr int kRgLruStepChannels = 64;
constexpr int kRgLruStepBytes = 2 * kRgLruStepThreads * 2 * 4;

constexpr int kRgLruThreads = 128, kRgLruRows = 32;  // per block; each thread has two channels

}  // namespace cortado::elementwise
