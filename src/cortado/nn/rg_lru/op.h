// The RG-LRU around its scan: its gates, and one token of all of it.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

inline constexpr double kRgLruSharpness = 8.0;  // c of Griffin's eq. 4: a = exp(-c r softplus(Λ))

// Block-diagonal weights [H,D/H,D/H] (in, out) of both gates, their biases and Λ, [D].
struct RgLruWeights {
  Tensor recurrence, recurrence_bias, input, input_bias, lambda;
};

// x_h W_h of all tokens, [H, B T, D/H]: x [B,T,D], weight [H,D/H,D/H].
Tensor block_products(const Tensor& x, const Tensor& weight);
// block_products with a bias [D]: [B,T,D].
Tensor block_diagonal(const Tensor& x, const Tensor& weight, const Tensor& bias);

// What the scan takes, h_t = exp(log_a_t) h_{t-1} + b_t: [B,T,D], float32 or float64.
struct RgLruGates {
  Tensor log_a, b;
};
// x [B,T,D]; first bool [B|1,T]: the tokens where a sequence begins.
RgLruGates rg_lru_gates(const Tensor& x, const RgLruWeights& weights, const Tensor& first);

// One token without derivatives: x [B,1,D], position int64 [B], start [B,D] -> h [B,D], and y [B,1,D] of x's type.
// Undefined where only the scan computes it.
struct RgLruToken {
  Tensor h, y;
};
RgLruToken rg_lru_token(const Tensor& x, const RgLruWeights& weights, const Tensor& position, const Tensor& start);

}  // namespace cortado
