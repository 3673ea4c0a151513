#include "cortado/mechanisms/lola/mixer.h"

namespace cortado {

LolaMixer::LolaMixer(const LolaSettings& settings, int64_t dim)
    : FeatureMixer("lola", settings, settings.features, dim), settings_(settings) {}

LolaFeatures LolaMixer::key_features() const {
  return [map = phi_k_](const Tensor& k) { return map->forward(k); };
}

Tensor LolaMixer::read(LolaMemory& memory, const Projected& p, const Tensor& phi_q, SpareRoom* room) const {
  const int64_t tokens = p.q.size(1);
  const bool by_tokens = settings_.rule.token_window && tokens == 1;
  std::vector<Tensor> outputs;
  for (int64_t first = 0, count = 0; first < tokens; first += count) {
    count = by_tokens ? 1 : std::min(tokens - first, memory.room_in_chunk());
    const auto part = [&](const Tensor& x) { return x.narrow(1, first, count); };
    outputs.push_back(memory.read(part(p.q), part(p.k), part(p.v), part(phi_q), window_factor_, room, by_tokens));
  }
  if (outputs.empty()) return at::zeros_like(p.q);
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, 1);
}

Tensor LolaMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  const Projected p = project(x, batch.positions(x, start_of(state, "position")));
  const Tensor phi_q = phi_q_->forward(p.q);
  SequenceState nothing;
  if (!state) nothing = zero_state(batch.rows(x), x.options().requires_grad(false));
  LolaMemory memory(state ? *state : nothing, settings_.rule, key_features());
  Tensor o;
  if (batch.cu_seqlens && memory.rows() > 0) {  // one sequence after the other: their chunks end at different places
    const Tensor bounds = batch.cu_seqlens->to(at::kCPU, at::kLong);
    std::vector<LolaMemory> rows;
    std::vector<Tensor> outputs;
    for (int64_t n = 0; n < memory.rows(); ++n) {
      const int64_t first = bounds[n].item<int64_t>(), count = bounds[n + 1].item<int64_t>() - first;
      const auto part = [&](const Tensor& y) { return y.narrow(1, first, count); };
      rows.push_back(memory.row(n));
      outputs.push_back(read(rows.back(), {part(p.q), part(p.k), part(p.v)}, part(phi_q), nullptr));
    }
    memory = LolaMemory::join(std::move(rows));
    o = at::cat(outputs, 1);
  } else {
    o = read(memory, p, phi_q, state && !at::GradMode::is_enabled() ? &state->room() : nullptr);
  }
  if (state) std::move(memory).put(*state);
  return output(o.to(x.scalar_type()));
}

Tensor LolaMixer::reference(const Tensor& x) {
  const Projected p = project(x, Batch{}.positions(x));
  const Tensor k = expand_heads(p.k, settings_.heads), v = expand_heads(p.v, settings_.heads);
  return output(lola_reference(p.q, k, v, phi_q_->forward(p.q), phi_k_->forward(k), window_factor_, settings_.rule,
                               /*chunked=*/x.size(1)));
}

SequenceState LolaMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  add_cache(state, rows, options);
  const int64_t heads = settings_.heads, d = settings_.head_dim;
  const Tensor no_pairs = at::zeros({rows, 0, heads, d}, options);
  state.add("cache_keys", no_pairs);
  state.add("cache_values", no_pairs);
  state.add("scan_state", at::zeros({rows, heads, phi_k_->width(), d + 1}, scan_options(options)));
  if (scored_by_queries(settings_.rule.score)) {
    state.add("key_scores", at::zeros({rows, 0, heads}, scan_options(options)));
    state.add("cache_scores", at::zeros({rows, 0, heads}, scan_options(options)));
  }
  for (const char* number : {"position", "kept", "cached"}) {
    state.add(number, at::zeros({rows}, position_options(options)));
  }
  return state;
}

int64_t LolaMixer::state_bytes(int64_t tokens) const {
  const int64_t kept = lola_kept(tokens, settings_.rule), cached = lola_cached(tokens, settings_.rule);
  const int64_t heads = settings_.heads, d = settings_.head_dim;
  const int64_t scores = scored_by_queries(settings_.rule.score) ? (kept + cached) * heads * 4 : 0;
  return kept * pair_bytes() + cached * heads * 2 * d * 4 + heads * phi_k_->width() * (d + 1) * 4 + scores + 3 * 8;
}

std::optional<PairCount> LolaMixer::pairs(int64_t tokens) const {
  const LolaRule& rule = settings_.rule;
  const int64_t most = rule.token_window.value_or(2 * rule.chunk) + rule.cache;
  return PairCount{static_cast<double>(std::min(tokens, most)), static_cast<double>(phi_k_->width()) / 2};
}

double LolaMixer::flops_per_token(int64_t tokens) const {
  const LolaRule& rule = settings_.rule;
  const auto chunk = static_cast<double>(rule.chunk);
  const double window = rule.token_window ? static_cast<double>(*rule.token_window) : 1.5 * chunk;
  const double reach = std::min<double>(tokens, window + static_cast<double>(rule.cache));
  const auto features = static_cast<double>(phi_k_->width()), width = static_cast<double>(settings_.width());
  // A chunk's end scores λ + C candidates, by φ_k of all of them, and moves C into the state; with token_window every
  // token λ + 1, and moves one.
  const double leaving = rule.token_window ? 1.0 : chunk;
  const double scored = rule.score == LolaScore::kError ? 1.0 + static_cast<double>(rule.cache) / leaving : 0.0;
  return projection_flops() + phi_q_->flops_per_token() + phi_k_->flops_per_token() * std::max(1.0, scored) +
         width * (4 * reach + 2 * features * (2 + scored));
}

namespace {

std::shared_ptr<Mixer> make_lola(JsonReader& settings, const MixerContext& context) {
  LolaSettings read{ProjectionSettings::read(settings, context)};
  LolaRule& rule = read.rule;
  rule.chunk = settings.integer("chunk", 1, 1 << 24, 64);
  rule.cache = settings.integer("cache", 0, 1 << 24, 64);
  rule.mixture = lolcats_mixture(settings.choice("mixture", lolcats_mixtures(), "gated"));
  rule.score = lola_score(settings.choice("score", lola_scores(), "error"));
  read_scores(settings, rule);
  rule.token_window = settings.optional_integer("token_window", 1, 1 << 24);
  read.features = HeadFeatureSettings::read(settings, read.head_dim);
  return std::make_shared<LolaMixer>(read, context.dim);
}

}  // namespace

const Mechanism kLola = {
    .name = "lola",
    .family = "linear attention + window + sparse cache",
    .paper = "LoLA (2025) §3, eq. 8, 13",
    .equation = "o_t = [sum_(G, W) e^s v_j + phi(q_t)^T H] / [the same without v]",
    .state = "2 C Hkv 2d + lambda H 2d + H F (d+1)",
    .primitives = {"window_attention"},
    .bidirectional = false,
    .make = make_lola,
    // With softcap's ties, and in bfloat16, pairs of nearly equal scores may be chosen differently: hence "recent"
    // there.
    .examples =
        {
            R"({"chunk": 8, "cache": 12})",
            R"({"chunk": 5, "cache": 3, "mixture": "plain", "kv_heads": 2, "rotary": true, "rope_theta": 100,
                "feature_map": "hedgehog", "score": "recent", "softcap": 9})",
            R"({"chunk": 16, "cache": 0, "mixture": "lolcats", "feature_map": "exp", "features": 3, "scale": 0.3})",
            R"({"chunk": 4, "cache": 10, "score": "ratio", "heads": 2, "head_dim": 10, "feature_map": "t2r",
                "features": 12, "bias": true})",
        },
    .normalized = {R"({"chunk": 8, "cache": 12, "score": "recent"})",
                   R"({"chunk": 8, "cache": 3, "mixture": "lolcats", "kv_heads": 2, "score": "absolute"})",
                   R"({"chunk": 4, "cache": 9, "mixture": "plain"})"},
};

}  // namespace cortado
