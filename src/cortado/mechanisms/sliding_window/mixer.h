// sliding_window: softmax attention over the last w tokens, with a ring of w - 1 keys and values.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

extern const Mechanism kSlidingWindow;

// State: "keys", "values" [rows, P, Hkv, d], the last P <= w - 1, oldest first, right-aligned; "position" [rows].
class SlidingWindowMixer : public AttentionMixer {
 public:
  SlidingWindowMixer(const AttentionSettings& settings, int64_t dim)
      : AttentionMixer("sliding_window", settings, dim) {}
  StateLayout state_layout() const override;
  std::optional<PairCount> pairs(int64_t tokens) const override;

 protected:
  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override;
};

}  // namespace cortado
