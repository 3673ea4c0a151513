// Rotary positions by a kernel for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::window {

// Whether it turns these: bfloat16 x [B,T,H,K] by float32 tables [B|1,T,1,half], K up to 128 and half multiples of 8, on a
// GPU that has kernels.
bool gpu_turns(const Tensor& x, const Tensor& cos);

// Pairs of channels (i, i + half) of every head by their token's angle, times `direction` (1 or -1).
Tensor turn_on_gpu(const Tensor& x, const Tensor& cos, const Tensor& sin, float direction, cuda::Machine& machine);

// The same, differentiable, where x is.
Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin);

// One token's queries and keys [B,1,·,K], in bfloat16, by angles of position (int64 [B]) times frequency (float64 [half]),
// without derivatives.
struct Turned {
  Tensor q, k;
};
bool gpu_turns_token(const Tensor& q, const Tensor& k, int64_t half);
Turned turn_token_on_gpu(const Tensor& q, const Tensor& k, const Tensor& positions, const Tensor& frequencies,
                         cuda::Machine& machine);
Turned turn_token(const Tensor& q, const Tensor& k, const Tensor& positions, const Tensor& frequencies);

}  // namespace cortado::window
