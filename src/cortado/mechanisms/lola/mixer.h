// lola: LoLCATs with a sparse cache of the pairs that its linear state would answer wrongly.
#pragma once

#include "cortado/mechanisms/lola/memory.h"
#include "cortado/mechanisms/lolcats/feature_mixer.h"
#include "cortado/mechanisms/mechanism.h"

namespace cortado {

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

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  std::optional<PairCount> pairs(int64_t tokens) const override;
  double flops_per_token(int64_t tokens) const override;
  std::vector<std::string> memories() const override { return {"window", "cache", "state"}; }
  Tensor held(const Tensor& x) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  // By the definition; `held` as lola_reference's.
  Tensor defined(const Tensor& x, Tensor* held) const;
  // Dense tokens through the memory in `state`, chunk by chunk: [B,T,H,d].
  Tensor read(SequenceState& state, const Projected& p, const Tensor& phi_q, bool in_place) const;
  Tensor read_packed(SequenceState& state, const Projected& p, const Tensor& phi_q, const Tensor& cu_seqlens) const;

  LolaSettings settings_;
};

}  // namespace cortado
