// Rotary positions (RoPE), the half-split form of Llama.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace cortado {

using at::Tensor;

// cos and sin of position·theta^(-2i/K), i < K/2, shaped [B|1, T, 1, K/2]. The angles are formed in float64, so that
// they are as good at position 10^6 as at 10; the tables are float32 (float64 where the rotated tensors are).
struct RotaryTable {
  Tensor cos;
  Tensor sin;
};

// positions int64 [B, T]; head_dim = K must be even and positive: InputError.
RotaryTable rotary_table(const Tensor& positions, int64_t head_dim, double theta, at::ScalarType type = at::kFloat);

// x [B, T, H, K], channels i and i + K/2 turned by angle i:
// y = [x_1 cos - x_2 sin, x_2 cos + x_1 sin], x_1, x_2 the halves. Computed in the table's type, returned in x's.
// With a table of K' < K channels the first K' are turned so and the others pass.
Tensor rotate(const Tensor& x, const RotaryTable& table);

// Both at once. Compute the table once where several tensors share the positions.
Tensor apply_rotary(const Tensor& x, const Tensor& positions, double theta);
// Queries and keys [B,T,·,K] in their places, with one table; nothing without a theta. `channels`: the first so many
// (all).
void rotate_queries_and_keys(Tensor& q, Tensor& k, const Tensor& positions, std::optional<double> theta,
                             std::optional<int64_t> channels = {});

}  // namespace cortado
