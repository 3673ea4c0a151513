// What the mixers with softmax attention over tokens share: soft-cap, and going on from a cache.
#pragma once

#include "cortado/mechanisms/shared/projected.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

struct AttentionSettings : ProjectionSettings {
  std::optional<double> softcap = {};
  std::optional<double> scale = {};  // of the scores; none: 1/√d
  bool causal = true;
  std::optional<int64_t> window = {};  // none: every key

  // The projections', "softcap" and "scale"; "window" is read by sliding_window.
  static AttentionSettings read(JsonReader& settings, const MixerContext& context);
};

// o = W_o softmax(q kᵀ / √d) v per head.
class AttentionMixer : public ProjectedMixer {
 public:
  AttentionMixer(std::string name, const AttentionSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  double flops_per_token(int64_t tokens) const override;

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  // The keys to attend to, old and new; leaves them in the state.
  virtual JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) = 0;

  // Softmax over those keys, [B,T,H,d].
  virtual Tensor attend(const Tensor& q, const JoinedKeys& keys, const WindowAttentionOptions& options) const {
    return attend_joined(q, keys, options);
  }

  AttentionSettings settings_;

 private:
  WindowAttentionOptions options() const;
};

}  // namespace cortado
