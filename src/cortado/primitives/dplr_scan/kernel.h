// The kernel of the scan: float32 on the CPU, token by token. Does not include torch.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::dplr {

// All tensors are contiguous float32 with all heads.
struct ScanKernel {
  int64_t rows, tokens, heads, keys, values;  // rows: sequences; tokens: of the batch's second dimension
  const int64_t* bounds;                      // [rows + 1] of packed sequences; null: dense
  float factor;                               // of o
  const float *q, *k, *v, *a, *b, *g;         // [B,T,H,K], v [B,T,H,V]
  const float* start;                         // [rows,H,K,V]; null: zero
  float *o = nullptr, *last = nullptr;        // [B,T,H,V], [rows,H,K,V]

  // Backward: reads everything except o and last. A null gradient is zero.
  const float *grad_o = nullptr, *grad_last = nullptr;
  float *dq = nullptr, *dk = nullptr, *dv = nullptr, *da = nullptr, *db = nullptr, *dg = nullptr, *dstart = nullptr;

  // The first token of a row and the number of its tokens; tokens are counted over the whole batch.
  int64_t first(int64_t row) const { return bounds ? bounds[row] : row * tokens; }
  int64_t count(int64_t row) const { return bounds ? bounds[row + 1] - bounds[row] : tokens; }
};

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel);
void run_gradient(const ScanKernel& scan, const kernels::Parallel& parallel);

}  // namespace cortado::dplr
