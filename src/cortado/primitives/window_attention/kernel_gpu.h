// Window attention's kernels on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::window {

using cuda::GpuTimed;

// Of a row (a batch row, or a packed sequence) queries are aligned to the end of the keys: query t is at t + keys -
// queries. Causal, it sees the keys up to itself, of which the last `window`; else those less than `window` away. 0: all.
struct GpuAttention {
  GpuTimed q, k, v, o;                 // 16-bit
  float *lse, *row_max, *denominator;  // [B, queries, heads]: log of the sum, largest score, sum of exp(score - that)
  const long long *query_bounds, *key_bounds;  // packed, or null
  const long long* first_key;                  // [B], the first key that is there, or null
  int rows, queries, keys, heads;              // packed: of all rows together
  int key_size, value_size;                    // up to WIDTH; multiples of 8
  int window, causal;
  float scale;
  // The gradients:
  GpuTimed grad_o, grad_q, grad_k, grad_v;  // 16-bit; grad_k and grad_v have all heads
  const float* delta;                       // [B, queries, heads]: do . o - dlse
  // Few queries of many keys, whose tiles are shared out to so many blocks; not packed, and in place of what is above:
  int parts;
  float* part_o;               // [parts, B, queries, heads, V], not divided by the sum
  float *part_max, *part_sum;  // [parts, B, queries, heads]
};

// The parts' outputs and sums, brought to the largest of their maxima.
struct GpuAttentionJoin {
  const float *part_o, *part_max, *part_sum;
  GpuTimed o;
  float *lse, *row_max, *denominator;
  int parts, rows, queries, heads, value_size;
};

// delta, of [B, queries] dense rows of every head.
struct GpuDots {
  GpuTimed o, grad_o;
  const float *row_max, *denominator, *grad_lse;  // [B, queries, heads]; grad_lse null: 0
  float *lse, *delta;
  int queries, heads, value_size;
};

constexpr int kGpuTile = 64, kGpuAttentionThreads = 128;
constexpr int kGpuJoinThreads = 128;  // of a block: a warp a query's head

constexpr int gpu_tile_bytes(int width) { return kGpuTile * width * 2; }
// Queries and two stages of keys and values; with gradients queries, do, and the same; keys, values, and two stages of
// queries and do, with two numbers of each query.
constexpr int gpu_forward_bytes(int width) { return 5 * gpu_tile_bytes(width); }
constexpr int gpu_gradient_bytes(int width) { return 6 * gpu_tile_bytes(width) + 4 * kGpuTile * 4; }

}  // namespace cortado::window
