// mega: a multi-dimensional damped moving average feeding gated single-head attention within chunks.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

extern const Mechanism kMega;

// y_t = Σ_j η_j h_tj, h_tj = α_j β_j x_t + (1 - α_j δ_j) h_{t-1,j} for every channel of x, each with `size` averages;
// α, δ in (0, 1).
class DampedAverage : public torch::nn::Module {
 public:
  DampedAverage(int64_t dim, int64_t size);

  // x [B,T,D] (float32 or float64) -> y; the state's "average" [rows, D·size].
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state, bool reverse) const;
  // By its impulse response.
  Tensor reference(const Tensor& x, bool reverse) const;

 private:
  Tensor alpha_, delta_;  // before the sigmoid, [D, size]
  Tensor beta_, eta_;     // [D, size]
};

struct MegaSettings {
  int64_t shared;   // z: size of queries and keys
  int64_t values;   // v: size of the values
  int64_t average;  // moving averages a channel
  int64_t chunk;
  bool bias;            // relative positions as Mega's rotary bias
  Rotary rotary = 1e4;  // angles of the bias
  bool causal;
};

// State: "average" [rows, D·average], "keys", "values" (ring of at most chunk - 1), "position" [rows].
class MegaMixer : public Mixer {
 public:
  MegaMixer(const MegaSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  // Queries, already scaled, and keys [B,T,1,*]: the score is their product.
  std::pair<Tensor, Tensor> queries_and_keys(const Tensor& average, const Tensor& positions) const;
  Tensor values(const Tensor& x) const;
  Tensor output(const Tensor& x, const Tensor& average, const Tensor& attended) const;
  int64_t key_size() const { return settings_.shared * (settings_.bias ? 2 : 1); }

  MegaSettings settings_;
  int64_t dim_;
  std::shared_ptr<DampedAverage> average_, average_back_;
  std::shared_ptr<Linear> z_, v_, reset_, update_, h_, u_;
  Tensor kappa_, mu_;              // [2, z]: of queries and of keys
  Tensor bias_alpha_, bias_beta_;  // [z]
};

}  // namespace cortado
