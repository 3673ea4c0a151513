// What `gla`, `retention` and `lightning` share: projections, short convolutions, one gated scan, a norm, an output
// gate. What each adds is its decay.
#pragma once

#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/norms.h"

namespace cortado {

struct GatedLinearSettings {
  int64_t heads;
  int64_t key_dim, value_dim;  // of all heads together
  int64_t taps = 0;            // of a short convolution with silu on each of q, k and v; 0: none
  std::string feature_map;     // of q and k: "none", "silu", "relu", "elu" (elu + 1)
  bool silu_values = false;
  double scale;            // of q
  bool norm_heads = true;  // RMSNorm of each head's output, else of all heads' together
  double norm_eps = 1e-5;
  bool swish = true;             // output gate silu(W_g x), else σ(W_g x)
  std::optional<Rotary> rotary;  // rotary positions on q and k

  // {"heads", "key_dim", "value_dim", "taps", "feature_map"}; the scale is K^-1/2.
  static GatedLinearSettings read(JsonReader& settings, const MixerContext& context, int64_t key_dim, int64_t value_dim,
                                  const std::string& feature_map);
};

// o = W_o (norm(scan(q, k, v, decay)) ⊙ gate(W_g x)).
// State: "scan_state" [rows, H, K, V], with rotary positions "position" [rows], with convolutions "conv_q", "conv_k",
// "conv_v".
class GatedLinearMixer : public Mixer {
 public:
  GatedLinearMixer(std::string name, const GatedLinearSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  // Natural logs, <= 0, float32 or float64: [B,T,H,K] or [H].
  virtual Tensor decay(const Tensor& x) const = 0;

  const GatedLinearSettings settings_;

 private:
  struct Operands {
    Tensor q, k, v;
  };
  // `project(map)` is one of the map's forms on x.
  template <typename Project>
  Operands operands(const Tensor& positions, const Project& project) const;
  Tensor output(const Tensor& x, const Tensor& o) const;

  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<Linear> g_, o_;
  std::shared_ptr<RmsNorm> norm_;
};

// Decays of the heads that never change, as [H] in the type of x's scan.
Tensor constant_decay(const std::vector<double>& logs, const Tensor& x);

}  // namespace cortado
