// lolcats: the hybrid of LoLCATs, window softmax and feature-map linear attention in one denominator.
#pragma once

#include "cortado/mechanisms/lolcats/feature_mixer.h"
#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/student.h"

namespace cortado {

struct LolcatsSettings : ProjectionSettings {
  LolcatsRule rule = {};
  HeadFeatureSettings features = {};
};

// State: "keys", "values" [rows, P, Hkv, d]: those still in the softmax part's reach (sliding: at most w; terrace: the
// block before and the partial block, at most 2w), oldest first, right-aligned; "scan_state" [rows,H,F,d+1]: Σ φ_k ⊗
// [v, 1] of the others; "position" [rows].
class LolcatsMixer : public FeatureMixer, public SoftmaxStudent {
 public:
  LolcatsMixer(const LolcatsSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  std::optional<PairCount> pairs(int64_t tokens) const override;
  double flops_per_token(int64_t tokens) const override;

  Lesson lesson(const Tensor& x) const override;
  Tensor project_output(const Tensor& mixed) const override { return output(mixed); }
  int64_t shortest_lesson() const override;
  std::vector<std::string> learned() const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  // Whole dense sequences from zero, [B,T,H,d].
  Tensor mix(const Projected& p) const;
  // φ_k of every query head's copy of its keys.
  Tensor key_features(const Tensor& k) const;
  // Fills in what the linear part gets during the call; moves the state on.
  // `longest`: no sequence has more queries.
  void advance(LolcatsCall& call, int64_t longest, SequenceState* state) const;

  // One token of every sequence, where all their windows are equally long; none elsewhere, and nothing has changed.
  std::optional<Tensor> step(const Projected& p, const Batch& batch, SequenceState& state) const;

  LolcatsSettings settings_;
};

}  // namespace cortado
