// The base of mixers with softmax attention over tokens: soft-cap, and continuing from a cache.
#pragma once

#include "cortado/mechanisms/shared/projected.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// The options of window attention that a layer fixes by its settings; the others change from call to call.
struct AttentionSettings : ProjectionSettings, WindowAttentionOptions {
  // Reads the settings of the projections, "softcap" and "scale". sliding_window reads "window".
  static AttentionSettings read(JsonReader& settings, const MixerContext& context) {
    AttentionSettings read{ProjectionSettings::read(settings, context), {}};
    read_scores(settings, read);
    read.causal = context.causal;
    return read;
  }
  // As read(), and the settings of the projections' convolutions.
  static AttentionSettings read_all(JsonReader& settings, const MixerContext& context) {
    AttentionSettings all = read(settings, context);
    all.read_convolutions(settings);
    return all;
  }
};

// y = W_o softmax(q kᵀ / √d) v, per head.
class AttentionMixer : public ProjectedMixer {
 public:
  AttentionMixer(std::string name, const AttentionSettings& settings, int64_t dim)
      : ProjectedMixer(std::move(name), settings, dim), settings_(settings) {}

  Tensor reference(const Tensor& x) override {
    const Projected p = project_reference(x);
    return output(std::get<0>(window_attention_reference(p.q, p.k, p.v, settings_)), x);
  }

  double flops_per_token(int64_t tokens) const override {
    const int64_t seen = settings_.window ? std::min(tokens, *settings_.window) : tokens;
    return weight_flops() + 4.0 * static_cast<double>(settings_.width()) * static_cast<double>(seen);
  }

 protected:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projected p = project(x, batch, state);
    WindowAttentionOptions attention = settings_;
    attention.cu_seqlens = batch.cu_seqlens;
    JoinedKeys keys{p.k, p.v, std::nullopt, batch.cu_seqlens};
    if (state) keys = advance(p.k, p.v, batch, *state);
    return output(attend(p.q, keys, attention).to(x.scalar_type()), x);
  }

  // Returns old and new keys and values to attend to, and updates the state.
  virtual JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) = 0;

  // Softmax attention of q over `keys`, [B,T,H,d].
  virtual Tensor attend(const Tensor& q, const JoinedKeys& keys, const WindowAttentionOptions& options) const {
    return attend_joined(q, keys, options);
  }

  AttentionSettings settings_;
};

}  // namespace cortado
