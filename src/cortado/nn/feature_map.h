// Feature maps φ of linear attention, which replace the exponential of softmax attention.
#pragma once

#include <string>

#include "cortado/nn/module.h"
#include "cortado/primitives/types.h"

namespace cortado {

// x [B,T,H,d] -> φ(x) [B,T,H,F] in float32 (float64 for float64). Learned and drawn weights are per head:
//
//   elu           elu(x) + 1                                                      F = d
//   relu          relu(x)                                                         F = d
//   taylor        1, x/d^¼, x_i²/(√2 d^½), x_i x_j/d^½ for i < j:                 F = 1 + d + d(d+1)/2
//                 φ(q)·φ(k) = 1 + s + s²/2 with s = q·k/√d
//   t2r           relu(Wx + b)                                                    F = features
//   hedgehog      one softmax over [2y, -2y], y = Wx + b                          F = 2·features
//   lolcats       max([softmax(Wx), softmax(-Wx)], 1e-12), two softmaxes          F = 2·features
//   exp           exp(x)                                                          F = d
//   hedgehog_exp  [exp(Wx), exp(-Wx)]                                             F = 2·features
//   performer     exp(ωx' - |x'|²/2)/√F, x' = x/d^¼: E[φ(q)·φ(k)] = exp(q·k/√d)   F = features
//
// The last three are unbounded, so forward returns their logits, log φ(x); callers work with differences of logits.
// Performer's ω has rows of random orthogonal matrices, with the lengths of Gaussian vectors. It is drawn once and kept
// as a buffer. A query's own |x'|²/2 cancels in a normalised sum, so `query` leaves it out.
class FeatureMap : public Module {
 public:
  FeatureMap(std::string kind, int64_t heads, int64_t head_dim, int64_t features);

  static const std::vector<std::string>& kinds();
  static bool learned(const std::string& kind);  // has parameters: queries and keys each have their own map
  static bool sized(const std::string& kind);    // takes `features`
  static bool in_logits(const std::string& kind);

  int64_t size() const;  // F
  double flops_per_token() const { return sized(kind) ? 2.0 * static_cast<double>(weight.numel()) : 0.0; }

  // Returns φ(x), or log φ(x) if in_logits.
  Tensor forward(const Tensor& x, bool query) const;

  std::string kind;
  Tensor weight;  // W or ω [H, features, d]
  Tensor bias;    // b [H, features]: t2r, hedgehog

 private:
  Tensor project(const Tensor& x) const;

  int64_t head_dim_;
};

// For t2r, hedgehog and lolcats: maps the projected y [..., f] to features [..., F]. The caller applies lolcats' lower
// bound.
Tensor learned_features(const std::string& kind, const Tensor& y);
inline constexpr double kLeastFeature = 1e-12;  // lower bound, so that denominators are never 0

// Draws `rows` random vectors of size `dim`, [rows, dim]: rows of uniformly distributed orthogonal matrices, each
// scaled to the length of an independent Gaussian vector.
Tensor orthogonal_features(int64_t rows, int64_t dim);

}  // namespace cortado
