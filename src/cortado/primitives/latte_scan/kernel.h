// Latte's kernel: logits in, outputs out; float32 arithmetic on the CPU, forward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::latent {

struct LatteKernel {
  int64_t rows, tokens, heads, latents, values;
  const int64_t* bounds = nullptr;  // packed: row n is the tokens bounds[n] to bounds[n + 1] of the only batch row
  bool softmax = true;              // of the query over its latents; else it is weights

  kernels::Timed query = {}, theta = {}, v = {};
  // [rows,h,L,V], [rows,h,L], [rows,h,L]: all or none.
  kernels::States state = {}, normalizer = {}, maximum = {};

  kernels::Timed o = {};
  kernels::States last_state = {}, last_normalizer = {}, last_maximum = {};
};

// Every result is the same, bit for bit, on any number of threads.
void run_latte(const LatteKernel& call, const kernels::Parallel& parallel);

}  // namespace cortado::latent
