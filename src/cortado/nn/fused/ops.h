// The fused functions of kernel.h on tensors, differentiable once. A caller checks takes() and otherwise computes by
// ATen.
#pragma once

#include <utility>

#include "cortado/nn/rg_lru/op.h"
#include "cortado/primitives/types.h"

namespace cortado::fused {

// Whether all defined tensors are non-empty CPU tensors of float32, bfloat16 or float16, and kernels are enabled.
bool takes(std::initializer_list<Tensor> tensors);

// x / rms(x) ⊙ weight in x's type, x [..., D], weight [D]; each of `groups` equal parts of D has its own rms.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups);

// silu(gate) ⊙ up, [..., D], in the inputs' type.
Tensor gated_silu(const Tensor& gate, const Tensor& up);

// Returns the RG-LRU's (log_a, b), float32 [B,T,D]: log_a = σ(r) slope, b = √(1 - a²) σ(i) x, or b = σ(i) x where
// `first` [B|1,T] is true. slope [D].
std::pair<Tensor, Tensor> rg_lru_gates(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope,
                                       const Tensor& first, double largest_slope);

// One token of the RG-LRU, not differentiable: x [B,1,D], start [B,D] -> h [B,D], float32. Weights [H,D/H,D/H] (in,
// out), biases and Λ [D], float32 and contiguous like start; slope = -sharpness softplus(Λ); position int64 [B], 0 for
// a sequence's first token.
Tensor rg_lru_step(const Tensor& x, const RgLruWeights& weights, double sharpness, const Tensor& position,
                   const Tensor& start);

// Rotates x [B,T,H,d] by cos, sin [B|1,T,1,half], in x's type.
Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin);

}  // namespace cortado::fused
