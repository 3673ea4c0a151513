// softmax: attention over all earlier tokens, with a growing cache of keys and values.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

extern const Mechanism kSoftmax;

// State: the cache "keys", "values" [rows, capacity, Hkv, d], "position" and "used" (shared/growing_cache.h); with taps
// also the tails "q_conv", "k_conv", "v_conv".
class SoftmaxMixer : public AttentionMixer {
 public:
  SoftmaxMixer(JsonReader& settings, const MixerContext& context, std::string name = "softmax")
      : SoftmaxMixer(AttentionSettings::read_all(settings, context), context.dim, std::move(name)) {}
  SoftmaxMixer(const AttentionSettings& settings, int64_t dim, std::string name = "softmax")
      : AttentionMixer(std::move(name), settings, dim) {}
  std::optional<PairCount> pairs(int64_t tokens) const override { return PairCount{static_cast<double>(tokens), 0}; }

 protected:
  void declare(StateLayout& layout) const override;
  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override;
};

}  // namespace cortado
