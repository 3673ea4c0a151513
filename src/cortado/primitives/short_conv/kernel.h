// The short convolution's kernel: float32 arithmetic on the CPU, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::convolution {

// `count` tokens of one sequence from its token `first` on: what is computed on its own. The sequence is `length`
// tokens of the batch row `batch` from the token `begin` on, and `row` of the states. Every sequence has a block, if an
// empty one.
struct Block {
  int64_t row, batch, begin, length, first, count;
};
inline constexpr int64_t kBlockTokens = 128;

// Timed tensors are [B,T,1,D] with the channels side by side. States [rows,taps-1,D] are contiguous; no data: zero, or
// not wanted.
struct ConvKernel {
  int64_t channels, taps;
  bool silu = false;
  const Block* blocks = nullptr;
  int64_t count = 0;

  kernels::Timed x = {};
  const float *weight = nullptr, *bias = nullptr;  // [taps, D], [D]
  const float* initial = nullptr;

  // Forward.
  kernels::Timed y = {};
  float* final_state = nullptr;

  // Backward.
  kernels::Timed grad_y = {}, grad_x = {};
  const float* grad_final = nullptr;
  float* grad_initial = nullptr;
  float* sums = nullptr;         // room for [count, taps + 1, D]
  float* grad_weight = nullptr;  // [taps + 1, D], the last row the bias's

  bool past_caches = false;  // y, grad_x: kernels::goes_past_caches
};

// Every result is the same, bit for bit, on any number of threads.
void run_forward(const ConvKernel& conv, const kernels::Parallel& parallel);
void run_backward(const ConvKernel& conv, const kernels::Parallel& parallel);

}  // namespace cortado::convolution
