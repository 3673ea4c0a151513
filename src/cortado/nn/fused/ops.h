// The fused functions of kernel.h on tensors, with their derivatives (the first only). Each says whether it takes its
// arguments; if not, its caller computes the same from ATen's functions.
#pragma once

#include <utility>

#include "cortado/nn/rg_lru/op.h"
#include "cortado/primitives/types.h"

namespace cortado::fused {

// Whether these (undefined ones apart) are non-empty CPU tensors of float32, bfloat16 or float16, and kernels enabled.
bool takes(std::initializer_list<Tensor> tensors);

// x / rms(x) ⊙ weight in x's type, x [..., D], weight [D]; each of `groups` equal parts of D has its own rms.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups);

// silu(gate) ⊙ up in their type, [..., D].
Tensor gated_silu(const Tensor& gate, const Tensor& up);

// (log_a, b) of the RG-LRU, float32 [B,T,D]: log_a = σ(r) slope, b = √(1 - a²) σ(i) x; b = σ(i) x where `first`
// [B|1,T] says so. slope [D].
std::pair<Tensor, Tensor> rg_lru_gates(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope,
                                       const Tensor& first, double largest_slope);

// One token of the RG-LRU, without derivatives: x [B,1,D], start [B,D] -> h [B,D], float32. Weights [H,D/H,D/H] (in,
// out), biases and Λ [D], float32 and contiguous like start; slope = -sharpness softplus(Λ); position int64 [B], 0
// where the token is the first.
Tensor rg_lru_step(const Tensor& x, const RgLruWeights& weights, double sharpness, const Tensor& position,
                   const Tensor& start);

// x [B,T,H,d] turned by cos, sin [B|1,T,1,half], in x's type.
Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin);

}  // namespace cortado::fused
