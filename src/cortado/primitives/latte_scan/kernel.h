// Latte on the CPU, from logits to outputs, forward and backward, in float32 arithmetic. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::latent {

struct LatteKernel {
  int64_t rows, tokens, heads, latents, values;
  const int64_t* bounds = nullptr;  // packed: row n is tokens bounds[n] .. bounds[n + 1] of the only batch row
  bool softmax = true;              // softmax of the query over the latents; else the query is the weights

  kernels::Timed query = {}, theta = {}, v = {};
  // [rows,h,L,V], [rows,h,L], [rows,h,L]: all three or none.
  kernels::States state = {}, normalizer = {}, maximum = {};

  kernels::Timed o = {};  // forward only
  kernels::States last_state = {}, last_normalizer = {}, last_maximum = {};
};

// The gradients of a call; its outputs are not read.
struct LatteGradients {
  // Given: gradients of the outputs; null: 0.
  kernels::Timed o = {};
  kernels::States state = {}, normalizer = {};
  // Wanted: gradients of the inputs, with `heads` heads.
  kernels::Timed query = {}, theta = {}, v = {};
  kernels::States initial_state = {}, initial_normalizer = {};
};

// Results are bit-identical on any number of threads.
void run_latte(const LatteKernel& call, const kernels::Parallel& parallel);
void run_latte_backward(const LatteKernel& call, const LatteGradients& gradients, const kernels::Parallel& parallel);

}  // namespace cortado::latent
