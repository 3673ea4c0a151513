// longformer: a sliding window plus the first tokens of the sequence, which everyone sees.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

extern const Mechanism kLongformer;

// State: "keys", "values" (ring of the window), "global_keys", "global_values" [rows, G, Hkv, d], "position" [rows].
class LongformerMixer : public AttentionMixer {
 public:
  LongformerMixer(const AttentionSettings& settings, int64_t globals, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override;

 private:
  // `mixed` [B,T,H,d] with the global tokens' rows, which see the whole sequence, in place.
  Tensor with_global_queries(const Tensor& mixed, const Tensor& x, const Batch& batch) const;

  int64_t globals_;
  // What the global tokens of a bidirectional layer attend with: projections of their own.
  std::shared_ptr<Linear> q_global_, k_global_, v_global_;
};

}  // namespace cortado
