// Feature maps φ of linear attention: what stands in place of the exponential.
#pragma once

#include <string>

#include "cortado/nn/module.h"
#include "cortado/primitives/types.h"

namespace cortado {

// x [B,T,H,d] -> φ(x) [B,T,H,F] in float32 (float64 for float64). What is learned or drawn is so per head:
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
// The last three have no bound, so they are given as logits, log φ(x): what uses them works with differences of logits.
// Performer's ω are rows of random orthogonal matrices with the lengths of Gaussian vectors, drawn once, a buffer. A
// query's own |x'|²/2 cancels in a normalised sum, so `query` leaves it out.
class FeatureMap : public Module {
 public:
  FeatureMap(std::string kind, int64_t heads, int64_t head_dim, int64_t features);

  static const std::vector<std::string>& kinds();
  static bool learned(const std::string& kind);  // has parameters: queries and keys have a map each
  static bool sized(const std::string& kind);    // takes `features`
  static bool in_logits(const std::string& kind);

  int64_t size() const;  // F
  double flops_per_token() const { return sized(kind) ? 2.0 * static_cast<double>(weight.numel()) : 0.0; }

  // φ(x), or log φ(x) where in_logits.
  Tensor forward(const Tensor& x, bool query) const;

  std::string kind;
  Tensor weight;  // W or ω [H, features, d]
  Tensor bias;    // b [H, features]: t2r, hedgehog

 private:
  Tensor project(const Tensor& x) const;

  int64_t head_dim_;
};

// Of the maps t2r, hedgehog and lolcats what comes behind the matrix: y [..., f] -> [..., F]. Lolcats' least value is
// the caller's to set.
Tensor learned_features(const std::string& kind, const Tensor& y);
inline constexpr double kLeastFeature = 1e-12;  // so that denominators are never 0

// `rows` random vectors of size `dim`: blocks of rows of orthogonal matrices, uniformly distributed, each row with the
// length of a Gaussian vector of its own. [rows, dim]
Tensor orthogonal_features(int64_t rows, int64_t dim);

}  // namespace cortado
