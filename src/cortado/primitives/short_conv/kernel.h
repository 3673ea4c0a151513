// The short convolution on the CPU in float32 arithmetic, forward and backward. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::convolution {

// A unit of work: `count` tokens of one sequence from its token `first` on. The sequence is the `length` tokens from
// token `begin` on of batch row `batch`, and `row` of the states. Every sequence has a block, even if it is empty.
struct Block {
  int64_t row, batch, begin, length, first, count;
};
inline constexpr int64_t kBlockTokens = 128;

// Timed tensors are [B,T,1,D] with contiguous channels. States [rows,taps-1,D] are contiguous; null: the initial state
// is zero, or the final state is not wanted.
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
  float* sums = nullptr;         // scratch: [count, taps + 1, D]
  float* grad_weight = nullptr;  // [taps + 1, D], the last row for the bias

  bool past_caches = false;  // of y and grad_x, see kernels::goes_past_caches
};

// Results are bit-identical on any number of threads.
void run_forward(const ConvKernel& conv, const kernels::Parallel& parallel);
void run_backward(const ConvKernel& conv, const kernels::Parallel& parallel);

}  // namespace cortado::convolution
