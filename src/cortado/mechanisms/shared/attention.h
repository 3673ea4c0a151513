// The base of mixers with softmax attention over tokens: soft-cap, sinks, and continuing from a cache.
#pragma once

#include "cortado/mechanisms/shared/projected.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// The options of window attention that a layer fixes by its settings; the others change from call to call.
struct AttentionSettings : ProjectionSettings, WindowAttentionOptions {
  bool sinks = false;  // a learned score per query head is part of the softmax, and has no value (gpt-oss)

  // Reads the settings of the projections, "softcap" and "scale". sliding_window reads "window".
  static AttentionSettings read(JsonReader& settings, const MixerContext& context) {
    AttentionSettings read{ProjectionSettings::read(settings, context), {}};
    read_scores(settings, read);
    read.causal = context.causal;
    return read;
  }
  // As read(), and the settings of the projections' convolutions, of sinks and of the queries' temperature.
  static AttentionSettings read_all(JsonReader& settings, const MixerContext& context) {
    AttentionSettings all = read(settings, context);
    all.read_convolutions(settings);
    all.sinks = settings.boolean("sinks", false);
    all.read_temperature(settings);
    return all;
  }
};

// The outputs o [B,T,H,V] of attention over keys, and the logs of their sums of exp(score), lse [B,T,H].
struct Attended {
  Tensor o, lse;
};

// y = W_o softmax(q kᵀ / √d) v, per head. With sinks a head's softmax has one more score, a parameter "sinks" [H], whose
// value is 0: o is multiplied by Σ exp(score) / (Σ exp(score) + exp(sink)) = σ(lse - sink).
class AttentionMixer : public ProjectedMixer {
 public:
  AttentionMixer(std::string name, const AttentionSettings& settings, int64_t dim)
      : ProjectedMixer(std::move(name), settings, dim), settings_(settings) {
    if (settings.sinks) register_parameter(sinks_, "sinks", at::zeros({settings.heads}), Role::kGain);
  }

  Tensor reference(const Tensor& x) override {
    const Projected p = project_reference(x);
    return output(past_sinks(attend_reference(p.q, p.k, p.v)).to(x.scalar_type()), x);
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
    return output(past_sinks(attend(p.q, keys, attention)).to(x.scalar_type()), x);
  }

  // Returns old and new keys and values to attend to, and updates the state.
  virtual JoinedKeys advance(const Tensor& k, const Tensor& v, const Batch& batch, SequenceState& state) = 0;

  // Softmax attention of q over `keys`, without sinks.
  virtual Attended attend(const Tensor& q, const JoinedKeys& keys, const WindowAttentionOptions& options) const {
    const auto [o, lse] = attend_joined_with_sums(q, keys, options);
    return {o, lse};
  }
  // The definition, from the zero state.
  virtual Attended attend_reference(const Tensor& q, const Tensor& k, const Tensor& v) const {
    const auto [o, lse, _] = window_attention_reference(q, k, v, settings_);
    return {o, lse};
  }
  Tensor past_sinks(const Attended& attended) const {
    if (!sinks_.defined()) return attended.o;
    const Tensor share = at::sigmoid(attended.lse - sinks_.to(attended.lse.scalar_type()));
    return attended.o * share.unsqueeze(-1);
  }

  AttentionSettings settings_;

 private:
  Tensor sinks_;  // undefined: none
};

}  // namespace cortado
