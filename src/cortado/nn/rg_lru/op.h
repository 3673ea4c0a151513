// The RG-LRU's operators except its scan: the gates, and the whole unit for one token.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

inline constexpr double kRgLruSharpness = 8.0;  // c of Griffin's eq. 4: a = exp(-c r softplus(Λ))

// Block-diagonal weights [H,D/H,D/H] (in, out) of both gates, their biases and Λ, [D].
struct RgLruWeights {
  Tensor recurrence, recurrence_bias, input, input_bias, lambda;
};

// Returns x_h W_h for all tokens, [H, B T, D/H]: x [B,T,D], weight [H,D/H,D/H].
Tensor block_products(const Tensor& x, const Tensor& weight);
// block_products with a bias [D]: [B,T,D].
Tensor block_diagonal(const Tensor& x, const Tensor& weight, const Tensor& bias);

// The inputs of the scan h_t = exp(log_a_t) h_{t-1} + b_t: [B,T,D], float32 or float64.
struct RgLruGates {
  Tensor log_a, b;
};
// x [B,T,D]; first bool [B|1,T]: true for the first token of a sequence.
RgLruGates rg_lru_gates(const Tensor& x, const RgLruWeights& weights, const Tensor& first);

// One token, not differentiable: x [B,1,D], position int64 [B], start [B,D] -> h [B,D], and y [B,1,D] in x's type.
// Undefined if no kernel takes the call; the caller then uses the scan.
struct RgLruToken {
  Tensor h, y;
};
RgLruToken rg_lru_token(const Tensor& x, const RgLruWeights& weights, const Tensor& position, const Tensor& start);

}  // namespace cortado
