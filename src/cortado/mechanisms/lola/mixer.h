// lola: LoLCATs with a sparse cache of the pairs that its linear state would answer wrongly.
#pragma once

#include "cortado/mechanisms/lola/memory.h"
#include "cortado/mechanisms/lolcats/feature_mixer.h"
#include "cortado/mechanisms/mechanism.h"

namespace cortado {

extern const Mechanism kLola;

struct LolaSettings : ProjectionSettings {
  LolaRule rule = {};
  HeadFeatureSettings features = {};
};

// Parameters as lolcats', so that one checkpoint serves both.
// State: "keys", "values" [rows, P, Hkv, d], the window (at most 2C, or η), "cache_keys", "cache_values"
// [rows, Q, H, d], the cache (at most λ), each oldest first and right-aligned, "kept" and "cached" of these there;
// "scan_state" [rows,H,F,d+1]: Σ φ_k ⊗ [v, 1] of all others; "position" [rows]; and where queries score the pairs,
// "key_scores" [rows,P,H] and "cache_scores" [rows,Q,H].
class LolaMixer : public FeatureMixer {
 public:
  LolaMixer(const LolaSettings& settings, int64_t dim);

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) override;
  Tensor reference(const Tensor& x) override;
  SequenceState zero_state(int64_t rows, const at::TensorOptions& options) const override;
  int64_t state_bytes(int64_t tokens) const override;
  std::optional<PairCount> pairs(int64_t tokens) const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  LolaFeatures key_features() const;
  // Dense tokens through a memory, chunk by chunk: [B,T,H,d].
  Tensor read(LolaMemory& memory, const Projected& p, const Tensor& phi_q, SpareRoom* room) const;

  LolaSettings settings_;
};

}  // namespace cortado
