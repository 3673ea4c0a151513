// Latte's kernel: logits in, outputs out, and back; float32 arithmetic on the CPU. No torch here.
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

  kernels::Timed o = {};  // the forward's
  kernels::States last_state = {}, last_normalizer = {}, last_maximum = {};
};

// Of a call without its outputs.
struct LatteGradients {
  // Given, of the outputs; 0 where there is no data.
  kernels::Timed o = {};
  kernels::States state = {}, normalizer = {};
  // Wanted, with `heads` heads.
  kernels::Timed query = {}, theta = {}, v = {};
  kernels::States initial_state = {}, initial_normalizer = {};
};

// Every result is the same, bit for bit, on any number of threads.
void run_latte(const LatteKernel& call, const kernels::Parallel& parallel);
void run_latte_backward(const LatteKernel& call, const LatteGradients& gradients, const kernels::Parallel& parallel);

}  // namespace cortado::latent
