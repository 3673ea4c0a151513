// Positions: rotary (RoPE), the half-split form of Llama, and sinusoidal.
#pragma once

#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/primitives/types.h"

namespace cortado {

// How a model's angles are stretched to a longer context than it was first trained on. Frequency i is divided by
//
//   linear    the factor;
//   llama3    the factor if one turn takes more than original_context/low tokens, 1 if it takes fewer than
//             original_context/high; in between the frequency is interpolated linearly in turns per context;
//   yarn      the factor if it turns less than beta_slow times in original_context, 1 if it turns more than beta_fast
//             times; in between it is interpolated linearly in i;
//   longrope  long_factors[i] if context is more than original_context, else short_factors[i];
//   factors   factors[i], as in GGUF files.
//
// yarn and longrope also multiply cos and sin by attention_factor, which multiplies the scores by its square.
//
// transformers chooses longrope's list by the length of the text read so far, and reads the text again when it passes
// original_context. A state of constant size cannot be rotated anew, so the choice is made once for all texts, by the
// context that is wanted, as llama.cpp does. Texts up to original_context have transformers' numbers with a context up
// to it, longer texts with a longer one.
struct RotaryScaling {
  enum class Type { kNone, kLinear, kLlama3, kYarn, kLongrope, kFactors };
  Type type = Type::kNone;
  double factor = 1.0;
  double low = 1.0, high = 4.0;
  int64_t original_context = 8192;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;  // yarn: whole numbers i bound the interpolation
  double attention_factor = 1.0;
  int64_t context = 0;                                                      // longrope: tokens that a text may have
  std::vector<double> factors = {}, short_factors = {}, long_factors = {};  // K/2 numbers each

  bool operator==(const RotaryScaling&) const = default;

  // {"type": "linear", "factor": 2}, {"type": "factors", "factors": [...]}, {"type": "llama3", "factor": 8,
  // "low_freq_factor": 1, "high_freq_factor": 4, "original_context": 8192}, {"type": "yarn", "factor": 4,
  // "original_context": 32768, "beta_fast": 32, "beta_slow": 1, "truncate": true, "attention_factor": 1.14} or {"type":
  // "longrope", "short_factors": [...], "long_factors": [...], "original_context": 4096, "context": 131072,
  // "attention_factor": 1.19}
  static RotaryScaling from_json(const Json& json, const std::string& place);
  Json to_json() const;  // an empty object without scaling
  // Throws InputError, at the reader's place, for numbers that give no angles.
  void check(const JsonReader& reader) const;
  // Of how many frequencies it has lists; 0: it has none.
  int64_t listed() const;
};

// The attention factors of yarn's and longrope's papers, for a context that is `factor` times the original one.
double yarn_attention_factor(double factor, double scale = 1.0);
double longrope_attention_factor(double factor, int64_t original_context);
// Reads a list of factors: numbers above 0.
std::vector<double> read_factors(JsonReader& reader, const std::string& key);

// Returns the llama3 scaling that has these factors (GGUF files store the factors), if it has Llama 3's own low 1 and
// high 4.
std::optional<RotaryScaling> llama3_scaling(const std::vector<double>& factors, double theta);

// The angles: frequency i of K channels is theta^(-2i/K), scaled.
struct Rotary {
  double theta;
  RotaryScaling scaling;
  std::optional<int64_t> channels = {};  // K, the rotated channels of a head, its first ones; nullopt: all

  Rotary(double base, RotaryScaling stretched = {})  // NOLINT: a number is a theta
      : theta(base), scaling(std::move(stretched)) {}
  bool operator==(const Rotary&) const = default;
  int64_t channels_of(int64_t head_dim) const { return channels.value_or(head_dim); }
};

// Returns the frequencies of K/2 pairs of channels, float64 [K/2] on the device.
Tensor rotary_frequencies(int64_t channels, const Rotary& rotary, at::Device device);

// cos and sin of position · frequency i, i < K/2, times the attention factor: [B|1, T, 1, K/2]. The angles are computed
// in float64, so that they are as accurate at position 10^6 as at 10; the tables are float32 (float64 if the rotated
// tensors are).
struct RotaryTable {
  Tensor cos;
  Tensor sin;
};

// positions int64 [B, T]. InputError: K is odd or not positive.
RotaryTable rotary_table(const Tensor& positions, int64_t head_dim, const Rotary& rotary,
                         at::ScalarType type = at::kFloat);

// Rotates channels i and i + K/2 of x [B, T, H, K] by angle i: with x_1, x_2 the halves of x, y = [x_1 cos - x_2 sin,
// x_2 cos + x_1 sin], times the attention factor that is in the table. Computed in the table's type, returned in x's.
// Channels beyond the table's K are copied.
Tensor rotate(const Tensor& x, const RotaryTable& table);

// rotary_table and rotate in one call. If several tensors share the positions, compute the table once instead.
Tensor apply_rotary(const Tensor& x, const Tensor& positions, const Rotary& rotary);
// Rotates queries and keys [B,T,·,K] in place with one table; does nothing if `rotary` is empty.
void rotate_queries_and_keys(Tensor& q, Tensor& k, const Tensor& positions, const std::optional<Rotary>& rotary);

// Absolute positions to be added to the embeddings: interleaved sines and cosines, p_t[2i] = sin(t/10^(4·2i/D)) and
// p_t[2i+1] = cos(t/10^(4·2i/D)). positions int64 [B, T] -> [B|1, T, D] in `type`. An odd D ends on a sine. (Learned
// positions are an Embedding over the positions.)
Tensor sinusoidal_positions(const Tensor& positions, int64_t dim, at::ScalarType type);

}  // namespace cortado
