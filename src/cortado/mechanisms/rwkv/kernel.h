// What RWKV-7 computes between its maps, without derivatives: float32 on the CPU. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::rwkv7 {

using kernels::Parallel;

// mixed[i] = x + (before - x) ⊙ mixes[i], for x [tokens, width].
struct Shift {
  static constexpr int64_t kMost = 6, kBlock = 16;  // mixes; tokens of a task
  int64_t tokens, width, count;
  const float* x;
  const float* const* before;  // of each token, the previous one [width]; null: zero
  const float* mixes[kMost];   // [width]
  float* mixed;                // [count, tokens, width]
};
void shift(const Shift& call, const Parallel& parallel);

// Numbers of each channel, [H,K].
struct Channels {
  const float *decay, *rate, *share, *removal_scale, *key_rate, *bonus, *norm_weight, *norm_bias;
};

// The layer from its maps to the input of its last one; see README.md. All tensors are contiguous, [B,T,H,K] where
// nothing else is said. decay, rate and share: the low-rank maps' outputs without their biases.
struct Heads {
  int64_t rows, tokens, heads, size;  // rows: sequences; tokens: of the batch's second dimension
  const int64_t* bounds;              // [rows + 1] of packed sequences; null: dense
  float eps;
  const float *r, *key, *v, *decay, *rate, *gate;
  const float *share, *first;  // the share of the first layer's values, and these; null: v is used as it is
  Channels channels;
  const float* start;  // [rows,H,K,K]; null: zero
  float* last;         // [rows,H,K,K]; may be `start`
  float* o;
};
void heads(const Heads& call, const Parallel& parallel);

// y = max(x, 0)² for x [tokens, width].
struct SquaredRelu {
  static constexpr int64_t kBlock = 16;  // tokens of a task
  int64_t tokens, width;
  const float* x;
  float* y;
};
void squared_relu(const SquaredRelu& call, const Parallel& parallel);

}  // namespace cortado::rwkv7
