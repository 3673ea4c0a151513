// Window attention on the CPU in float32 arithmetic, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::window {

// Queries per block and keys per tile. Both lie on fixed grids, so that a query's sums are computed in one order
// whatever the tasks and threads.
inline constexpr int64_t kTile = 64;

// q [B,Tq,H,K], k [B,Tk,G,K], v [B,Tk,G,V]; G divides H, and H/G consecutive query heads share a key head. Query t sees
// the keys begin[t] .. end[t]-1 of its batch row, except those before first_key[b].
struct AttentionKernel {
  int64_t batch, queries, keys, heads, groups, key_size, value_size;
  kernels::Timed q, k, v;
  const int64_t *begin, *end;          // [Tq]
  const int64_t* first_key = nullptr;  // [B], or null: 0
  float scale = 1;
  float softcap = 0;         // 0: none
  int64_t task_queries = 0;  // queries per task; set by run_forward and run_backward
  float* parts = nullptr;    // run_few: the partial result of every part of the keys

  // The backward reads the forward's results. o is shaped like grad_o [B,Tq,H,V]; the others are [B,Tq,H], contiguous.
  kernels::Timed o;
  float *row_max = nullptr, *denominator = nullptr;
  float* lse = nullptr;  // forward only
};

// Tasks per group; one if there are no queries.
inline int64_t task_parts(const AttentionKernel& p) {
  return p.queries > 0 ? (p.queries + p.task_queries - 1) / p.task_queries : 1;
}

// Writes o, lse, row_max, denominator.
void run_forward(const AttentionKernel& attention, const kernels::Parallel& parallel);
// run_forward for at most kFewQueries queries per batch row, without transposing the keys first. Many keys are cut into
// parts; each task reads its part of all groups in memory order.
inline constexpr int64_t kFewQueries = 16, kFewPart = 512;
inline int64_t few_parts(const AttentionKernel& p) { return (p.keys + kFewPart - 1) / kFewPart; }
// A row of `parts` [B, few_parts, H, queries, few_row] floats: o, maximum and denominator.
inline int64_t few_row(const AttentionKernel& p) { return (p.value_size + 15) / 16 * 16 + 16; }
void run_few(const AttentionKernel& attention, const kernels::Parallel& parallel);

// grad_lse and grad_row_max may be null.
struct AttentionGradients {
  kernels::Timed grad_o;
  const float *grad_lse, *grad_row_max;
  kernels::Timed grad_q, grad_k, grad_v;  // in the inputs' shapes; no data: not wanted
};
void run_backward(const AttentionKernel& attention, const AttentionGradients& gradients,
                  const kernels::Parallel& parallel);

}  // namespace cortado::window
