// What the mixers with softmax attention over tokens share: projections, rotary positions, grouped heads, soft-cap, and
// going on from a cache.
#pragma once

#include "cortado/mechanisms/heads.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

struct AttentionSettings {
  int64_t heads, kv_heads, head_dim;
  std::optional<double> softcap;
  bool rotary, bias;
  double rope_theta;
  int64_t rotary_dim;  // channels of a head that are rotated, the first ones
  bool causal;
  std::optional<int64_t> window;  // none: every key

  // {"heads", "kv_heads", "head_dim", "softcap", "rotary", "rope_theta", "rotary_fraction", "bias"}; "window" is
  // read by sliding_window.
  static AttentionSettings read(JsonReader& settings, const MixerContext& context);
};

// o = W_o softmax(q kᵀ / √d) v per head, query head i with key head i·Hkv/H.
class AttentionMixer : public Mixer {
 public:
  AttentionMixer(std::string name, const AttentionSettings& settings, int64_t dim);

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) override;
  Tensor reference(const Tensor& x) override;
  double flops_per_token(int64_t tokens) const override;

 protected:
  // The keys to attend to, old and new; leaves the state updated (but for the position).
  virtual JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) = 0;

  // Softmax over those keys, [B,T,H,d].
  virtual Tensor attend(const Tensor& q, const JoinedKeys& keys, const WindowAttentionOptions& options) const {
    return attend_joined(q, keys, options);
  }

  struct Projected {
    Tensor q, k, v;
  };
  Projected project(const Tensor& x, const Tensor& positions) const;

  // Bytes of one key and its value in float32.
  int64_t pair_bytes() const { return 2 * settings_.kv_heads * settings_.head_dim * 4; }
  // {"keys", "values"} [rows, 0, Hkv, d] and "position" [rows].
  SequenceState empty_cache(int64_t rows, const at::TensorOptions& options) const;

  AttentionSettings settings_;
  std::shared_ptr<Linear> q_, k_, v_, o_;

 private:
  WindowAttentionOptions options() const;
};

}  // namespace cortado
