#include "cortado/mechanisms/macchiato/mixer.h"

#include "cortado/mechanisms/ring.h"
#include "cortado/nn/rotary.h"

namespace cortado {

MacchiatoMixer::MacchiatoMixer(const MacchiatoSettings& settings, int64_t dim)
    : Mixer("macchiato"),
      settings_(settings),
      dim_(dim),
      head_dim_(dim / settings.heads),
      latents_(settings.latents / settings.heads) {
  source_ = register_module(
      "source", std::make_shared<Source>(settings.source, dim, settings.heads, settings.taps, settings.causal));
  if (latents_ > 0) {
    // Per head: the window's logit first (if there is a window), then the latents'.
    const int64_t states = latents_ + (settings.window ? 1 : 0);
    latent_q_ = register_module("latent_q", std::make_shared<Linear>(dim, settings.heads * states));
    latent_k_ = register_module("latent_k", std::make_shared<Linear>(dim, settings.latents));
  }
  if (settings.window) {
    window_q_ = register_module("window_q", std::make_shared<Linear>(dim, dim));
    window_k_ = register_module("window_k", std::make_shared<Linear>(dim, dim));
  }
  v_ = register_module("v", std::make_shared<Linear>(dim, dim));
  o_ = register_module("o", make_output_linear(dim, dim));
}

MacchiatoMixer::Projected MacchiatoMixer::project(const Tensor& x, const Tensor& y, const Tensor& positions) const {
  const int64_t heads = settings_.heads;
  Projected p;
  p.v = split_heads(v_->forward(x), heads);
  if (latents_ > 0) {
    p.query_logits = split_heads(latent_q_->forward(y), heads);
    p.key_logits = split_heads(latent_k_->forward(y), heads);
  }
  if (!settings_.window) return p;
  const Tensor& from = latents_ > 0 ? x : y;  // R-SWA has no latents: its window's q and k come from the source
  p.window_q = split_heads(window_q_->forward(from), heads);
  p.window_k = split_heads(window_k_->forward(from), heads);
  rotate_queries_and_keys(p.window_q, p.window_k, positions, settings_.rotary);
  return p;
}

JoinedKeys MacchiatoMixer::window_keys(const Projected& p, const Batch& batch, SequenceState* state) const {
  if (!state) return {p.window_k, p.v, std::nullopt, batch.cu_seqlens};
  return advance_ring(*state, p.window_k, p.v, *settings_.window, batch);
}

LatteResult MacchiatoMixer::mix(const Projected& p, const Batch& batch, SequenceState* state) const {
  if (!settings_.window) {
    return latte(p.query_logits, p.key_logits, p.v, settings_.causal, latte_start(state), batch.cu_seqlens);
  }
  const JoinedKeys keys = window_keys(p, batch, state);
  if (latents_ > 0) {
    MacchiatoOptions options;
    options.window = *settings_.window;
    options.causal = settings_.causal;
    options.start = latte_start(state);
    options.cu_seqlens = batch.cu_seqlens;
    return macchiato(p.query_logits, p.key_logits, p.v, p.window_q, keys, options);
  }
  WindowAttentionOptions options;
  options.window = settings_.window;
  options.causal = settings_.causal;
  options.cu_seqlens = batch.cu_seqlens;
  return {attend_joined(p.window_q, keys, options), {}, {}, {}};
}

Tensor MacchiatoMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  const std::optional<Tensor> start = start_of(state, "position");
  const Tensor y = source_->forward(x, batch, state);
  const Projected p = project(x, y, batch.positions(x, start));
  const LatteResult result = mix(p, batch, state);
  if (state) {
    if (latents_ > 0) keep_latte(state, result);
    state->at("position") = *start + batch.lengths(x);
  }
  return o_->forward(merge_heads(result.o));
}

Tensor MacchiatoMixer::reference(const Tensor& x) {
  const Projected p = project(x, source_->reference(x), Batch{}.positions(x));
  Tensor o;
  if (!settings_.window) {
    o = latte_reference(at::softmax(p.query_logits, -1), p.key_logits, p.v, settings_.causal);
  } else if (latents_ > 0) {
    o = macchiato_reference(p.query_logits, p.key_logits, p.v, p.window_q, p.window_k, *settings_.window,
                            1 / std::sqrt(static_cast<double>(head_dim_)), settings_.causal);
  } else {
    WindowAttentionOptions options;
    options.window = settings_.window;
    options.causal = settings_.causal;
    o = std::get<0>(window_attention_reference(p.window_q, p.window_k, p.v, options));
  }
  return o_->forward(merge_heads(o));
}

SequenceState MacchiatoMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  source_->add_state(state, rows, options);
  if (latents_ > 0) add_latte_state(state, rows, settings_.heads, latents_, head_dim_, options);
  if (settings_.window) {
    const std::vector<int64_t> shape = {rows, 0, settings_.heads, head_dim_};
    state.add("keys", at::zeros(shape, options));
    state.add("values", at::zeros(shape, options));
  }
  state.add("position", at::zeros({rows}, position_options(options)));
  return state;
}

int64_t MacchiatoMixer::state_bytes(int64_t tokens) const {
  const int64_t ring = settings_.window ? std::min(tokens, *settings_.window - 1) * 2 * dim_ * 4 : 0;
  const int64_t latents = latents_ > 0 ? latte_state_bytes(settings_.heads, latents_, head_dim_) : 0;
  return source_->state_bytes() + latents + ring + 8;
}

double MacchiatoMixer::flops_per_token(int64_t tokens) const {
  const double seen = settings_.window ? static_cast<double>(std::min(tokens, *settings_.window)) : 0.0;
  return linear_flops({latent_q_.get(), latent_k_.get(), window_q_.get(), window_k_.get(), v_.get(), o_.get()}) +
         source_->flops_per_token() + 4.0 * seen * static_cast<double>(dim_) +
         static_cast<double>(settings_.latents) * (4.0 * static_cast<double>(head_dim_) + 8.0);
}

namespace {

std::shared_ptr<Mixer> make_macchiato(JsonReader& settings, const MixerContext& context) {
  MacchiatoSettings read{};
  read.heads = read_heads(settings, context, context.dim, "dim");
  read.latents = settings.integer("latents", 0, 1 << 20, context.dim);
  if (read.latents % read.heads != 0) {
    settings.fail(concat("latents (", read.latents, ") is not divisible by heads (", read.heads, ")"));
  }
  const std::string source = settings.choice("source", {"x", "conv", "rg_lru"}, "rg_lru");
  read.source = source == "x" ? SourceKind::kX : source == "conv" ? SourceKind::kConv : SourceKind::kRgLru;
  read.taps = settings.integer("taps", 1, 64, 3);
  // Absent: 129 keys, the paper's 128 and the token itself. null: no window.
  const Json window = settings.any("window");
  const bool said = settings.says("window");
  if (!said) read.window = 129;
  if (said && !window.is_null()) read.window = settings.integer("window", 1, 1 << 30);
  if (!read.window && read.latents == 0) settings.fail("latents 0 and no window leave nothing to attend to");
  // Without a window nothing is rotated, and any head size will do.
  read.rotary = read_rotary(settings, context, read.window ? context.dim / read.heads : 0, /*fallback=*/true);
  read.causal = context.causal;
  return std::make_shared<MacchiatoMixer>(read, context.dim);
}

}  // namespace

const Mechanism kMacchiato = {
    .name = "macchiato",
    .family = "linear attention + window",
    .paper = "Latte-Macchiato (2025) eq. 15-19",
    .equation = "o_t = p(0|t) window_t + sum_{l>=1} p(l|t) sum_{s<=t} p(s|l,t) v_s",
    .state = "L (D/H + 2) + 2 (w-1) D + D",
    .primitives = {"latte_scan", "gated_scan", "elementwise_scan", "running_max", "window_attention", "short_conv"},
    .bidirectional = true,
    .make = make_macchiato,
    .examples =
        {
            R"({"latents": 20, "window": 5, "source": "rg_lru"})",
            R"({"latents": 8, "window": 33, "source": "conv", "taps": 3})",
            R"({"latents": 8, "window": 1, "source": "x", "rotary": false, "heads": 2})",
            R"({"latents": 8, "window": null, "source": "x"})",
            R"({"latents": 8, "window": null, "source": "conv", "taps": 4})",
            R"({"latents": 8, "window": null, "source": "rg_lru"})",
            R"({"latents": 0, "window": 9, "source": "rg_lru"})",
        },
    .normalized = {R"({"latents": 8, "window": 7})", R"({"latents": 8, "window": null, "source": "conv"})",
                   R"({"latents": 0, "window": 9})"},
    .compare = R"({"window": 129, "source": "rg_lru"})",
};

}  // namespace cortado
