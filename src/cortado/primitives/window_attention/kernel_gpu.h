// The arguments of window attention's GPU kernels: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::window {

using cuda::GpuTimed;

// A row is a batch row or a packed sequence. Its queries are aligned to the end of its keys: query t is at position t +
// keys - queries. Causal: it sees the last `window` keys up to its own position. Else: the keys less than `window`
// away. window 0: no limit.
struct GpuAttention {
  GpuTimed q, k, v, o;                 // 16-bit
  float *lse, *row_max, *denominator;  // [B, queries, heads]: log-sum-exp, largest score, sum of exp(score - largest)
  const long long *query_bounds, *key_bounds;  // packed, or null
  const long long* first_key;                  // [B], the first valid key, or null
  int rows, queries, keys, heads;              // packed: totals over all rows
  int key_size, value_size;                    // up to WIDTH; multiples of 8
  int window, causal;
  float scale;
  // The gradients:
  GpuTimed grad_o, grad_q, grad_k, grad_v;  // 16-bit; grad_k and grad_v have all heads
  const float* delta;                       // [B, queries, heads]: do . o - dlse
  // Few queries of many keys: the keys' tiles are divided among `parts` blocks. Not packed. Written instead of the
  // results above:
  int parts;
  float* part_o;               // [parts, B, queries, heads, V], not divided by the sum
  float *part_max, *part_sum;  // [parts, B, queries, heads]
};

// Joins the parts' outputs and sums, rescaled to the largest of their maxima.
struct GpuAttentionJoin {
  const float *part_o, *part_max, *part_sum;
  GpuTimed o;
  float *lse, *row_max, *denominator;
  int parts, rows, queries, heads, value_size;
};

// Computes delta for dense rows [B, queries] of every head.
struct GpuDots {
  GpuTimed o, grad_o;
  const float *row_max, *denominator, *grad_lse;  // [B, queries, heads]; grad_lse null: 0
  float *lse, *delta;
  int queries, heads, value_size;
};

constexpr int kGpuTile = 64, kGpuAttentionThreads = 128;
constexpr int kGpuJoinThreads = 128;  // per block: one warp per head of a query

constexpr int gpu_tile_bytes(int width) { return kGpuTile * width * 2; }
// Shared memory. Forward: queries and two stages of keys and values. The gradient of the queries: queries, do, and two
// stages of keys and values. The gradient of keys and values: keys, values, and two stages of queries and do, with two
// numbers per query.
constexpr int gpu_forward_bytes(int width) { return 5 * gpu_tile_bytes(width); }
constexpr int gpu_gradient_bytes(int width) { return 6 * gpu_tile_bytes(width) + 4 * kGpuTile * 4; }

}  // namespace cortado::window
