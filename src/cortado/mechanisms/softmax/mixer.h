// softmax: attention over all earlier tokens, with a growing cache of keys and values.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

extern const Mechanism kSoftmax;

// State: "keys", "values" [rows, capacity, Hkv, d], where capacity grows in blocks of kCacheBlock; "used" [rows], the
// number of entries in use, equal in all rows; "position" [rows], the tokens seen; with taps also the tails "q_conv",
// "k_conv", "v_conv". A row with fewer tokens than `used` has them right-aligned. The cache may have a shorter type
// than the keys (LanguageModel::set_cache_type).
class SoftmaxMixer : public AttentionMixer {
 public:
  static constexpr int64_t kCacheBlock = 256;

  SoftmaxMixer(JsonReader& settings, const MixerContext& context, std::string name = "softmax")
      : AttentionMixer(std::move(name), AttentionSettings::read_all(settings, context), context.dim) {}
  std::optional<PairCount> pairs(int64_t tokens) const override { return PairCount{static_cast<double>(tokens), 0}; }

 protected:
  void declare(StateLayout& layout) const override;
  JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) override;
};

}  // namespace cortado
