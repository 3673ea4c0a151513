// linear: attention with a feature map in place of the exponential, and the gated block of the linear-attention
// chapter.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/convolved.h"
#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/feature_map.h"

namespace cortado {

struct LinearSettings {
  int64_t heads;
  std::string feature_map;  // FeatureMap::kinds()
  int64_t features;         // of the maps that have a matrix: its rows
  bool normalize;           // divide by φ(q)·z
  double epsilon;           // added to the denominator
  bool gate;                // output times σ(W_g x)
  bool bias;                // of the projections, as in the chapter's listing
  int64_t taps;             // of the short convolutions over q, k, v; 0: none
  bool causal;

  // All settings but the map's name and "gate", whose defaults the caller knows.
  static LinearSettings read(JsonReader& settings, const MixerContext& context, const std::string& feature_map,
                             bool gate);
};

// State: "scan_state" [rows, H, F, d] and "normalizer" [rows, H, F]; maps in logits have Latte's state in place of
// them. With convolutions "q_tail", "k_tail", "v_tail" [rows, taps - 1, D].
class LinearMixer : public Mixer {
 public:
  LinearMixer(std::string name, const LinearSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  struct Operands {
    Tensor q, k, v;  // q and k mapped to features
  };
  // `project(map)` is one of the map's forms on x.
  template <typename Project>
  Operands operands(const Project& project) const;
  Tensor mix(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch, SequenceState* state) const;
  Tensor mix_logits(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch, SequenceState* state) const;
  Tensor output(const Tensor& x, const Tensor& mixed) const;

  LinearSettings settings_;
  int64_t head_dim_;
  bool logits_;  // the map is given as log φ
  ConvolvedLinear q_, k_, v_;
  std::shared_ptr<FeatureMap> q_map_, k_map_;  // the same one where nothing is learned
  std::shared_ptr<Linear> g_, o_;
};

}  // namespace cortado
