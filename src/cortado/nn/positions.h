// Absolute positions, added to the embeddings.
#pragma once

#include <ATen/ATen.h>

namespace cortado {

using at::Tensor;

// Interleaved sines and cosines, p_t[2i] = sin(t/10^(4·2i/D)), p_t[2i+1] = cos of the same: positions int64 [B, T] ->
// [B|1, T, D] in `type`. An odd D ends on a sine. Learned positions are an Embedding over the positions.
Tensor sinusoidal_positions(const Tensor& positions, int64_t dim, at::ScalarType type);

}  // namespace cortado
