// lola: LoLCATs with a sparse cache for the pairs that its linear state would answer wrongly.
#include "cortado/mechanisms/lola/memory.h"
#include "cortado/mechanisms/lolcats/feature_mixer.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/packed.h"

namespace cortado {
namespace {

// Has lolcats' parameters, so that one checkpoint serves both. State: "keys", "values" [rows, P, Hkv, d], the window
// (at most 2C pairs, or η); "cache_keys", "cache_values" [rows, Q, H, d], the cache (at most λ pairs); both oldest
// first and right-aligned, with "kept" and "cached" pairs in use; "scan_state" [rows,H,F,d+1], Σ φ_k ⊗ [v, 1] of all
// other pairs; "position" [rows]; if queries score the pairs, also "key_scores" [rows,P,H] and "cache_scores"
// [rows,Q,H].
class LolaMixer : public FeatureMixer {
 public:
  LolaMixer(JsonReader& settings, const MixerContext& context) : FeatureMixer("lola", settings, context) {
    rule_.chunk = settings.integer("chunk", 1, 1 << 24, 64);
    rule_.cache = settings.integer("cache", 0, 1 << 24, 64);
    rule_.mixture = choose(settings, "mixture", lolcats_mixtures(), "gated");
    rule_.score = choose(settings, "score", lola_scores(), "error");
    read_scores(settings, rule_);
    rule_.token_window = settings.optional_integer("token_window", 1, 1 << 24);
  }

  Tensor reference(const Tensor& x) override { return output(defined(x, nullptr), x); }

  std::optional<PairCount> pairs(int64_t tokens) const override {
    const int64_t most = rule_.token_window.value_or(2 * rule_.chunk) + rule_.cache;
    return PairCount{static_cast<double>(std::min(tokens, most)), static_cast<double>(phi_k_->width()) / 2};
  }

  double flops_per_token(int64_t tokens) const override {
    const auto chunk = static_cast<double>(rule_.chunk);
    const double window = rule_.token_window ? static_cast<double>(*rule_.token_window) : 1.5 * chunk;
    const double reach = std::min<double>(tokens, window + static_cast<double>(rule_.cache));
    const auto features = static_cast<double>(phi_k_->width()), width = static_cast<double>(projections_.width());
    // At the end of a chunk λ + C candidates are scored, which needs φ_k of all of them, and C move into the state.
    // With token_window each token scores λ + 1 candidates and moves one. kLeaveOneOut adds a pass that sums all
    // candidates.
    const double leaving = rule_.token_window ? 1.0 : chunk;
    const double scored = scored_by_state(rule_.score) ? 1.0 + static_cast<double>(rule_.cache) / leaving : 0.0;
    const double passes = rule_.score == LolaScore::kLeaveOneOut ? 3 : 1;
    return weight_flops() + phi_k_->flops_per_token() * std::max(0.0, scored - 1) +
           width * (4 * reach + 2 * features * (2 + passes * scored));
  }

  std::vector<std::string> memories() const override { return {"window", "cache", "state"}; }

  HeldPairs held(const Tensor& x) const override {
    const at::NoGradGuard no_grad;
    HeldPairs held;
    defined(x, &held);
    return held;
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Projected p = project(x, batch, state);
    const Tensor phi_q = phi_q_->forward(p.q);
    const bool in_place = state && !at::GradMode::is_enabled();
    SequenceState nothing;
    if (!state) nothing = zero_state(batch.rows(x), x.options().requires_grad(false));
    SequenceState& memory = state ? *state : nothing;
    const Tensor o = batch.cu_seqlens && memory.rows() > 0 ? read_packed(memory, p, phi_q, *batch.cu_seqlens)
                                                           : read(memory, p, phi_q, in_place);
    return output(o.to(x.scalar_type()), x);
  }

  void declare(StateLayout& layout) const override {
    const int64_t heads = projections_.heads;
    const bool scored = scored_by_queries(rule_.score);
    const auto kept = [rule = rule_](int64_t tokens) { return lola_kept(tokens, rule); };
    const auto cached = [rule = rule_](int64_t tokens) { return lola_cached(tokens, rule); };
    for (const char* name : {"keys", "values"}) layout.ring(name, pair_shape(), kept, "kept");
    for (const char* name : {"cache_keys", "cache_values"}) {
      layout.ring(name, {heads, projections_.head_dim}, cached, "cached");
    }
    layout.scan("scan_state", {heads, phi_k_->width(), projections_.head_dim + 1});
    if (scored) layout.scan_ring("key_scores", {heads}, kept, "kept");
    if (scored) layout.scan_ring("cache_scores", {heads}, cached, "cached");
    for (const char* number : {StateLayout::kPosition, "kept", "cached"}) layout.counter(number);
  }

  // The definition. `held` as in lola_reference().
  Tensor defined(const Tensor& x, HeldPairs* held) const {
    const Projected p = project_reference(x);
    const Tensor k = for_queries(p.k), v = for_queries(p.v);
    return lola_reference({p.q, k, v, phi_q_->forward(p.q), phi_k_->forward(k), window_factor_}, rule_,
                          /*chunked=*/x.size(1), held);
  }

  // Reads dense tokens with the memory in `state`, chunk by chunk: [B,T,H,d].
  Tensor read(SequenceState& state, const Projected& p, const Tensor& phi_q, bool in_place) const {
    LolaMemory memory(state, rule_, [map = phi_k_](const Tensor& k) { return map->forward(k); });
    const int64_t tokens = p.q.size(1);
    const bool by_tokens = rule_.token_window && tokens == 1;
    std::vector<Tensor> outputs;
    for (int64_t first = 0, count = 0; first < tokens; first += count) {
      count = by_tokens ? 1 : std::min(tokens - first, memory.room_in_chunk());
      const auto part = [&](const Tensor& x) { return x.narrow(1, first, count); };
      outputs.push_back(memory.read(part(p.q), part(p.k), part(p.v), part(phi_q), window_factor_, in_place, by_tokens));
    }
    memory.finish();
    if (outputs.empty()) return at::zeros_like(p.q);
    return outputs.size() == 1 ? outputs[0] : at::cat(outputs, 1);
  }

  Tensor read_packed(SequenceState& state, const Projected& p, const Tensor& phi_q, const Tensor& cu_seqlens) const {
    const auto outputs =
        read_one_by_one(state, state_layout(), cu_seqlens, [&](auto& row, int64_t first, int64_t count) {
          const auto part = [&](const Tensor& y) { return y.narrow(1, first, count); };
          return read(row, {part(p.q), part(p.k), part(p.v)}, part(phi_q), /*in_place=*/false);
        });
    return at::cat(outputs, 1);
  }

  LolaRule rule_;
};

constexpr int64_t kMost = int64_t{1} << 24;

// With the mixture "lolcats" the linear part would drown a large cache, so it becomes "gated".
void share_evenly(Json& settings) {
  if (settings["mixture"] == "lolcats") settings["mixture"] = "gated";
}

}  // namespace

extern const Mechanism kLola = {
    .name = "lola",
    .family = "linear attention + window + sparse cache",
    .paper = "LoLA (2025) §3, eq. 9, 13",
    .equation = "o_t = [sum_(G, W) e^s v_j + phi(q_t)^T H] / [the same without v]",
    .state = "4 chunk Hkv d + 2 cache H d + H F (d + 1)",
    .primitives = {"window_attention"},
    .make = construct<LolaMixer>,
    .memory =
        MemoryKind{.name = "lola",
                   .options = {{.name = "window",
                                .help = "pairs in the window of single tokens, then one leaves at a time",
                                .high = kMost,
                                .setting = "token_window"},
                               {.name = "chunk", .help = "pairs that leave the window at a time", .high = kMost},
                               {.name = "cache", .help = "pairs in the sparse cache", .high = kMost},
                               {.name = "mixture", .help = kMixtureHelp, .words = names_in(lolcats_mixtures())},
                               {.name = "score", .help = "what stays in the cache", .words = names_in(lola_scores())}},
                   .learned = {{"feature_map", nullptr}, {"features", nullptr}, {"mixture", "gated"}},
                   .adapt = share_evenly},
};

}  // namespace cortado
