// Positions: rotary (RoPE), the half-split form of Llama, and sinusoidal.
#pragma once

#include <string>

#include "cortado/base/json.h"
#include "cortado/primitives/types.h"

namespace cortado {

// How a model's angles were stretched to a longer context than it was first trained on: frequency i is divided by
// linear   the factor;
// llama3   the factor where a turn takes more than original_context/low tokens, 1 where it takes fewer than
//          original_context/high, and between them what interpolates the frequencies linearly in turns per context;
// factors  factors[i], as GGUF files have it.
struct RotaryScaling {
  enum class Type { kNone, kLinear, kLlama3, kFactors };
  Type type = Type::kNone;
  double factor = 1.0;
  double low = 1.0, high = 4.0;
  int64_t original_context = 8192;
  std::vector<double> factors = {};  // K/2 of them

  bool operator==(const RotaryScaling&) const = default;

  // {"type": "linear", "factor": 2}, {"type": "factors", "factors": [...]} or {"type": "llama3", "factor": 8,
  // "low_freq_factor": 1, "high_freq_factor": 4, "original_context": 8192}
  static RotaryScaling from_json(const Json& json, const std::string& place);
  Json to_json() const;  // an empty object without scaling
};

// The scaling of type llama3 that has these factors, as GGUF files keep it, where it has Llama 3's own low 1 and
// high 4.
std::optional<RotaryScaling> llama3_scaling(const std::vector<double>& factors, double theta);

// The angles: frequency i of K channels is theta^(-2i/K), scaled.
struct Rotary {
  double theta;
  RotaryScaling scaling;

  Rotary(double base, RotaryScaling stretched = {})  // NOLINT: a number is a theta
      : theta(base), scaling(std::move(stretched)) {}
  bool operator==(const Rotary&) const = default;
};

// The frequencies of K/2 pairs of channels, float64 [K/2] on the device.
Tensor rotary_frequencies(int64_t channels, const Rotary& rotary, at::Device device);

// cos and sin of position·frequency i, i < K/2, shaped [B|1, T, 1, K/2]. The angles are formed in float64, so that
// they are as good at position 10^6 as at 10; the tables are float32 (float64 where the rotated tensors are).
struct RotaryTable {
  Tensor cos;
  Tensor sin;
};

// positions int64 [B, T]; head_dim = K must be even and positive: InputError.
RotaryTable rotary_table(const Tensor& positions, int64_t head_dim, const Rotary& rotary,
                         at::ScalarType type = at::kFloat);

// x [B, T, H, K], channels i and i + K/2 turned by angle i:
// y = [x_1 cos - x_2 sin, x_2 cos + x_1 sin], x_1, x_2 the halves. Computed in the table's type, returned in x's.
// With a table of K' < K channels the first K' are turned so and the others pass.
Tensor rotate(const Tensor& x, const RotaryTable& table);

// Both at once. Compute the table once where several tensors share the positions.
Tensor apply_rotary(const Tensor& x, const Tensor& positions, const Rotary& rotary);
// Queries and keys [B,T,·,K] in their places, with one table; nothing without rotary positions. `channels`: the first
// so many (all).
void rotate_queries_and_keys(Tensor& q, Tensor& k, const Tensor& positions, const std::optional<Rotary>& rotary,
                             std::optional<int64_t> channels = {});

// Absolute positions, added to the embeddings: interleaved sines and cosines, p_t[2i] = sin(t/10^(4·2i/D)), p_t[2i+1] =
// cos of the same. positions int64 [B, T] -> [B|1, T, D] in `type`. An odd D ends on a sine. Learned positions are an
// Embedding over the positions.
Tensor sinusoidal_positions(const Tensor& positions, int64_t dim, at::ScalarType type);

}  // namespace cortado
