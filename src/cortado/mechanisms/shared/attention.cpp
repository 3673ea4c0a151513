#include "cortado/mechanisms/shared/attention.h"

namespace cortado {

AttentionSettings AttentionSettings::read(JsonReader& settings, const MixerContext& context) {
  AttentionSettings read{ProjectionSettings::read(settings, context)};
  read_scores(settings, read);
  read.causal = context.causal;
  return read;
}

AttentionMixer::AttentionMixer(std::string name, const AttentionSettings& settings, int64_t dim)
    : ProjectedMixer(std::move(name), settings, dim), settings_(settings) {}

WindowAttentionOptions AttentionMixer::options() const {
  WindowAttentionOptions options;
  options.window = settings_.window;
  options.causal = settings_.causal;
  options.softcap = settings_.softcap;
  options.scale = settings_.scale;
  return options;
}

Tensor AttentionMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  const Projected p = project(x, batch.positions(x, start_of(state, "position")));
  WindowAttentionOptions attention = options();
  attention.cu_seqlens = batch.cu_seqlens;
  JoinedKeys keys{p.k, p.v, std::nullopt, batch.cu_seqlens};
  if (state) keys = advance(p.k, p.v, batch, *state);
  return output(attend(p.q, keys, attention).to(x.scalar_type()));
}

Tensor AttentionMixer::reference(const Tensor& x) {
  const Projected p = project(x, Batch{}.positions(x));
  return output(std::get<0>(window_attention_reference(p.q, p.k, p.v, options())));
}

double AttentionMixer::flops_per_token(int64_t tokens) const {
  const int64_t seen = settings_.window ? std::min(tokens, *settings_.window) : tokens;
  return weight_flops() + 4.0 * static_cast<double>(settings_.width()) * static_cast<double>(seen);
}

}  // namespace cortado
