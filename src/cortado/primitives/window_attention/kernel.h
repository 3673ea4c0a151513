// Window attention's kernel: float32 arithmetic on the CPU, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::window {

// Queries of a block, keys of a tile: both on fixed grids, so that a query's sums are taken in the same order whatever the
// tasks and threads.
inline constexpr int64_t kTile = 64;

// q [B,Tq,H,K], k [B,Tk,G,K], v [B,Tk,G,V]; G divides H, query heads r·H/G .. share key head r. Query t sees the keys
// begin[t] .. end[t]-1 of its batch row, but none before first_key[b].
struct AttentionKernel {
  int64_t batch, queries, keys, heads, groups, key_size, value_size;
  kernels::Timed q, k, v;
  const int64_t *begin, *end;          // [Tq]
  const int64_t* first_key = nullptr;  // [B], or null: 0
  float scale = 1;
  float softcap = 0;         // 0: none
  int64_t task_queries = 0;  // queries of a task; run_forward and run_backward choose them
  float* parts = nullptr;    // run_few's: what was gathered of every part of the keys

  // Given to the backward, results of the forward. o like grad_o [B,Tq,H,V], the others [B,Tq,H], contiguous.
  kernels::Timed o;
  float *row_max = nullptr, *denominator = nullptr;
  float* lse = nullptr;  // forward only
};

// Tasks of a group; where there are no queries, one.
inline int64_t task_parts(const AttentionKernel& p) {
  return p.queries > 0 ? (p.queries + p.task_queries - 1) / p.task_queries : 1;
}

// Writes o, lse, row_max, denominator.
void run_forward(const AttentionKernel& attention, const kernels::Parallel& parallel);
// The same for at most kFewQueries queries a batch row, without turning the keys first. Many keys are read in parts,
// each of all groups as they lie in memory.
inline constexpr int64_t kFewQueries = 16, kFewPart = 512;
inline int64_t few_parts(const AttentionKernel& p) { return (p.keys + kFewPart - 1) / kFewPart; }
// [B, few_parts, H, queries] rows of so many floats: o, maximum and denominator.
inline int64_t few_row(const AttentionKernel& p) { return (p.value_size + 15) / 16 * 16 + 16; }
void run_few(const AttentionKernel& attention, const kernels::Parallel& parallel);

// grad_lse and grad_row_max may be null.
struct AttentionGradients {
  kernels::Timed grad_o;
  const float *grad_lse, *grad_row_max;
  kernels::Timed grad_q, grad_k, grad_v;  // wanted, in the inputs' shapes
};
void run_backward(const AttentionKernel& attention, const AttentionGradients& gradients,
                  const kernels::Parallel& parallel);

}  // namespace cortado::window
