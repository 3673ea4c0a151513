#include "cortado/mechanisms/attention.h"

#include "cortado/nn/rotary.h"

namespace cortado {

AttentionSettings AttentionSettings::read(JsonReader& settings, const MixerContext& context) {
  AttentionSettings read{};
  read.heads = settings.integer("heads", 1, 65536, context.heads);
  read.kv_heads = settings.integer("kv_heads", 1, 65536, read.heads);
  if (read.heads % read.kv_heads != 0) {
    settings.fail(concat("heads (", read.heads, ") is not a multiple of kv_heads (", read.kv_heads, ")"));
  }
  if (!settings.has("head_dim") && context.dim % read.heads != 0) {
    settings.fail(concat("dim (", context.dim, ") is not divisible by heads (", read.heads, ")"));
  }
  read.head_dim = settings.integer("head_dim", 1, 65536, std::max<int64_t>(1, context.dim / read.heads));
  read.softcap = settings.optional_number("softcap", 1e-6, 1e9);
  read.rotary = settings.boolean("rotary", context.rotary);
  const double fraction = settings.number("rotary_fraction", 0.0, 1.0, 1.0);
  read.rotary_dim = static_cast<int64_t>(fraction * static_cast<double>(read.head_dim));
  if (read.rotary && read.head_dim % 2 != 0) {
    settings.fail(concat("rotary positions need an even head size, got ", read.head_dim));
  }
  if (read.rotary && (read.rotary_dim < 2 || read.rotary_dim % 2 != 0)) {
    settings.fail(concat("rotary_fraction ", fraction, " of head_dim (", read.head_dim, ") is ", read.rotary_dim,
                         " channels, which cannot be turned in pairs"));
  }
  read.rope_theta = settings.number("rope_theta", 1.0, 1e12, context.rope_theta);
  read.bias = settings.boolean("bias", false);
  read.causal = context.causal;
  return read;
}

AttentionMixer::AttentionMixer(std::string name, const AttentionSettings& settings, int64_t dim)
    : Mixer(std::move(name)), settings_(settings) {
  const int64_t wide = settings.heads * settings.head_dim, narrow = settings.kv_heads * settings.head_dim;
  q_ = register_module("q", std::make_shared<Linear>(dim, wide, settings.bias));
  k_ = register_module("k", std::make_shared<Linear>(dim, narrow, settings.bias));
  v_ = register_module("v", std::make_shared<Linear>(dim, narrow, settings.bias));
  o_ = register_module("o", make_output_linear(wide, dim, settings.bias));
}

AttentionMixer::Projected AttentionMixer::project(const Tensor& x, const Tensor& positions) const {
  Projected p{split_heads(q_->forward(x), settings_.heads), split_heads(k_->forward(x), settings_.kv_heads),
              split_heads(v_->forward(x), settings_.kv_heads)};
  if (settings_.rotary) {
    const RotaryTable table = rotary_table(positions, settings_.rotary_dim, settings_.rope_theta,
                                           x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    p.q = rotate(p.q, table);
    p.k = rotate(p.k, table);
  }
  return p;
}

WindowAttentionOptions AttentionMixer::options() const {
  WindowAttentionOptions options;
  options.window = settings_.window;
  options.causal = settings_.causal;
  options.softcap = settings_.softcap;
  return options;
}

Tensor AttentionMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  const std::optional<Tensor> start = state ? std::optional<Tensor>(state->at("position")) : std::nullopt;
  const Projected p = project(x, batch.positions(x, start));
  WindowAttentionOptions attention = options();
  attention.cu_seqlens = batch.cu_seqlens;
  JoinedKeys keys{p.k, p.v, std::nullopt, batch.cu_seqlens};
  if (state) {
    keys = advance(p.k, p.v, batch, *state);
    state->at("position") = *start + batch.lengths(x);
  }
  return o_->forward(merge_heads(attend(p.q, keys, attention)));
}

Tensor AttentionMixer::reference(const Tensor& x) {
  const Tensor positions = at::arange(x.size(1), x.options().dtype(at::kLong)).unsqueeze(0);
  const Projected p = project(x, positions);
  return o_->forward(merge_heads(std::get<0>(window_attention_reference(p.q, p.k, p.v, options()))));
}

SequenceState AttentionMixer::empty_cache(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  const std::vector<int64_t> shape = {rows, 0, settings_.kv_heads, settings_.head_dim};
  state.add("keys", at::zeros(shape, options));
  state.add("values", at::zeros(shape, options));
  state.add("position", at::zeros({rows}, position_options(options)));
  return state;
}

double AttentionMixer::flops_per_token(int64_t tokens) const {
  const int64_t seen = settings_.window ? std::min(tokens, *settings_.window) : tokens;
  return linear_flops({q_.get(), k_.get(), v_.get(), o_.get()}) +
         4.0 * static_cast<double>(settings_.heads * settings_.head_dim) * static_cast<double>(seen);
}

}  // namespace cortado
