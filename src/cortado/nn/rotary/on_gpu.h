// Rotary positions by GPU kernels.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::window {

// Whether the kernel rotates x: bfloat16 [B,T,H,K], float32 tables [B|1,T,1,half], K up to 128, K and half multiples of
// 8, a GPU on which kernels can run.
bool gpu_turns(const Tensor& x, const Tensor& cos);

// Rotates pairs of channels (i, i + half) of every head by their token's angle times `direction` (1 or -1).
Tensor turn_on_gpu(const Tensor& x, const Tensor& cos, const Tensor& sin, float direction, cuda::Machine& machine);

// turn_on_gpu on x's GPU, differentiable.
Tensor turn(const Tensor& x, const Tensor& cos, const Tensor& sin);

// One token's queries and keys [B,1,·,K] in bfloat16, rotated by position (int64 [B]) times frequency (float64 [half])
// and multiplied by `factor`, but for the channels that are not rotated. Not differentiable.
struct TokenAngles {
  Tensor positions, frequencies;
  double factor = 1.0;
};
struct Turned {
  Tensor q, k;
};
bool gpu_turns_token(const Tensor& q, const Tensor& k, int64_t half);
Turned turn_token_on_gpu(const Tensor& q, const Tensor& k, const TokenAngles& angles, cuda::Machine& machine);
Turned turn_token(const Tensor& q, const Tensor& k, const TokenAngles& angles);

}  // namespace cortado::window
