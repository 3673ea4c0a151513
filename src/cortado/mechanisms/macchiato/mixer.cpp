// macchiato: Latte and a sliding window under one softmax over L + 1 states, and the paper's ablations
// (Latte-Macchiato, Table 1).
#include "cortado/mechanisms/latte/mixer.h"

#include "cortado/base/error.h"
#include "cortado/mechanisms/macchiato/cache.h"
#include "cortado/mechanisms/macchiato/cache_settings.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/mechanisms/macchiato/source.h"
#include "cortado/mechanisms/shared/attention.h"
#include "cortado/mechanisms/shared/packed.h"
#include "cortado/mechanisms/shared/ring/ring.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/rotary/rotary.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// Unit of the window's logit. It starts far above the others and must be able to come down to them within some hundred
// AdamW steps, each about as large as the learning rate.
constexpr double kLogitUnit = 200;

constexpr int64_t kPapersWindow = 129;  // the paper's 128 and the current token
constexpr int64_t kLatentsOfAHead = 16;

constexpr const char *kScoreWeight = "score_weight", *kScoreBias = "score_bias";

void complete_layer(Json& layer, int64_t heads, bool rotary) {
  if (!layer.contains("latents")) layer["latents"] = kLatentsOfAHead * heads;
  if (!layer.contains("rotary")) layer["rotary"] = rotary;
  complete_cache(layer, layer.value("window", kPapersWindow));
}

// | Table 1        | settings                                        |
// | Latte          | window null, source x                            |
// | Latte-Conv     | window null, source conv                         |
// | Latte-Conv-SWA | window 129, source conv                          |
// | Latte-R        | window null, source rg_lru                       |
// | Latte-R-SWA    | window 129, source rg_lru (= Latte-Macchiato)    |
// | R-SWA          | window 129, source rg_lru, latents 0             |
//
// With "window_logit" it can replace a trained softmax layer (Latte-Macchiato §5.4): q, k, v and o are that layer's,
// and while state 0's logit is high the mixer is sliding-window attention.
class MacchiatoMixer : public Mixer, public SoftmaxStudent, public CacheStudent {
 public:
  MacchiatoMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("macchiato"), settings_{ProjectionSettings::read_without_rotary(settings, context), {}} {
    read_scores(settings, settings_);
    settings_.causal = context.causal;
    const int64_t dim = context.dim, heads = settings_.heads, latents = read_latents(settings, context, heads, 0);
    latents_ = latents / heads;
    const SourceKind source = choose(settings, "source", macchiato_sources(), "rg_lru");
    const int64_t taps = settings.integer("taps", 1, 64, 3);
    const bool identity = read_taps_identity(settings);
    settings_.window = settings.integer_or_null("window", 1, 1 << 30, kPapersWindow);  // null: no window
    if (!settings_.window && latents == 0) settings.fail("latents 0 and no window leave nothing to attend to");
    // Without a window nothing is rotated, so any head size is allowed.
    const int64_t rotated = settings_.window ? settings_.head_dim : 0;
    settings_.rotary = read_rotary(settings, context, rotated, /*fallback=*/true);
    const std::optional<double> window_logit = settings.optional_number("window_logit", -1e4, 1e4);
    settings.fail_if(window_logit && (!settings_.window || latents == 0),
                     "\"window_logit\" needs a window and latents: there is nothing to weigh");
    const CacheRule rule = read_cache_rule(settings, settings_, latents);
    learns_score_ = rule.learned;
    if (!rule.empty()) cache_.emplace(rule, settings_.head_dim);
    source_ = register_module("source", std::make_shared<Source>(source, dim, heads, taps, identity, settings_.causal));
    if (latents > 0) {
      // Per head: the window's logit first (if there is a window), then the latents'.
      const int64_t states = latents_ + (settings_.window ? 1 : 0);
      latent_q_ = register_module("latent_q", std::make_shared<Linear>(dim, heads * states));
      latent_k_ = register_module("latent_k", std::make_shared<Linear>(dim, latents));
    }
    if (settings_.window) {
      window_q_ = register_module("window_q", std::make_shared<Linear>(dim, settings_.width(), settings_.bias));
      window_k_ = register_module("window_k", std::make_shared<Linear>(dim, settings_.kv_width(), settings_.bias));
    }
    v_ = register_module("v", std::make_shared<Linear>(dim, settings_.kv_width(), settings_.bias));
    o_.emplace(*this, settings_, dim);
    settings.fail_if(settings_.qk_norm && !settings_.window, "\"qk_norm\" is of the window's queries and keys");
    norms_.emplace(*this, settings_);
    read_score(settings, dim);
    if (!window_logit) return;
    register_parameter(window_logit_, "window_logit", at::full({heads}, *window_logit / kLogitUnit), Role::kGain);
  }

  Tensor reference(const Tensor& x) override {
    Projected p = project(x, source_->reference(x), Batch{}.positions(x));
    const int64_t heads = settings_.heads;
    if (cache_) return project_output(cached_reference(p, nullptr), x);
    p.v = expand_heads(p.v, heads);
    if (!settings_.window) {
      return project_output(latte_reference(at::softmax(p.query_logits, -1), p.key_logits, p.v, settings_.causal), x);
    }
    const Tensor window_k = expand_heads(p.window_k, heads);
    return project_output(latents_ > 0
                              ? macchiato_reference(p.query_logits, p.key_logits, p.v, p.window_q, window_k, settings_)
                              : std::get<0>(window_attention_reference(p.window_q, window_k, p.v, settings_)),
                          x);
  }

  void declare(StateLayout& layout) const override {
    source_->declare(layout);
    if (latents_ > 0) declare_latte(layout, settings_.heads, latents_, settings_.head_dim);
    const std::vector<int64_t> pair = {settings_.kv_heads, settings_.head_dim};
    if (cache_) {
      cache_->declare(layout, pair);
    } else if (settings_.window) {
      for (const char* name : {"keys", "values"}) layout.ring(name, pair, StateLayout::last(*settings_.window - 1));
    }
    layout.position();
  }

  double flops_per_token(int64_t tokens) const override {
    const auto seen = static_cast<double>(settings_.window ? std::min(tokens, *settings_.window) : 0);
    const double pairs = seen * static_cast<double>(settings_.heads) + (cache_ ? pairs_beside_window(tokens) : 0);
    const double scores = cache_ && score_weight_.defined() ? 2.0 * static_cast<double>(score_weight_.numel()) : 0;
    return weight_flops() + scores + source_->flops_per_token() +
           4.0 * pairs * static_cast<double>(settings_.head_dim) +
           static_cast<double>(latents_ * settings_.heads) * (4.0 * static_cast<double>(settings_.head_dim) + 8.0);
  }

  std::vector<std::string> memories() const override {
    return cache_ ? std::vector<std::string>{"window", "cache", "latents"} : std::vector<std::string>{};
  }

  HeldPairs held(const Tensor& x) const override {
    const at::NoGradGuard no_grad;
    HeldPairs held;
    if (cache_) cached_reference(project(x, source_->reference(x), Batch{}.positions(x)), &held);
    return held;
  }

  Joining joining() const override {
    if (cache_) return {};
    return {std::max(source_->least_part(), settings_.window ? least_for_ring(*settings_.window) : 1)};
  }

  Lesson lesson(const Tensor& given) const override {
    // the learned parameters are float32, whatever the type of the frozen weights
    const auto type = window_logit_.scalar_type();
    const Tensor x = given.to(type);
    Projected p = project_latents(source_->forward(x, Batch{}, nullptr));
    project_window(p, given, given, Batch{}.positions(given));
    for (Tensor* part : {&p.v, &p.window_q, &p.window_k, &p.plain_q, &p.plain_k}) *part = part->to(type);
    p.score = scored(x);
    return {teacher(p), mix_projected(p, Batch{}, nullptr).o};
  }

  bool learns_score() const override { return score_weight_.defined(); }

  LookBack look_back(const Tensor& x) const override {
    const at::NoGradGuard no_grad;
    const int64_t tokens = x.size(1), repeat = settings_.heads / settings_.kv_heads;
    Projected p;
    project_window(p, x, x, Batch{}.positions(x));
    const auto by_head = [](const Tensor& heads) { return heads.transpose(1, 2).to(at::kFloat); };  // [B,H,T,K]
    const Tensor q = by_head(p.window_q), k = by_head(p.window_k);
    const Tensor later = at::ones({tokens, tokens}, at::TensorOptions(x.device()).dtype(at::kBool)).triu(1);
    const int64_t chunk = cache_ ? cache_->rule().chunk : CacheRule{}.chunk;
    const int64_t behind = *settings_.window + chunk;
    const Tensor near = later.logical_not().triu(1 - behind);
    const double scale = settings_.scale.value_or(1 / std::sqrt(static_cast<double>(settings_.head_dim)));
    Tensor wanted;
    for (int64_t i = 0; i < repeat; ++i) {
      Tensor logits = at::matmul(q.slice(1, i, std::nullopt, repeat), k.transpose(2, 3)).mul_(scale);
      if (settings_.softcap) logits = (logits / *settings_.softcap).tanh_().mul_(*settings_.softcap);
      const Tensor weights = at::softmax(logits.masked_fill_(later, -kInfinity), -1).masked_fill_(near, 0);
      wanted = i == 0 ? weights : at::maximum(wanted, weights);
    }
    return {teacher(p), wanted, behind};
  }

  Tensor latent_inputs(const Tensor& x) const override {
    return latents_ > 0 ? source_->forward(x, Batch{}, nullptr) : Tensor();
  }

  Tensor project_output(const Tensor& mixed, const Tensor& x) const override { return o_->forward(mixed, x); }

  std::vector<std::string> learned() const override {
    std::vector<std::string> names;
    if (!window_logit_.defined()) return names;
    for (const auto& entry : named_parameters()) {
      const std::string& name = entry.key();
      const bool of_latents = name.starts_with("source.") || name.starts_with("latent_") || name == "window_logit";
      if (of_latents || name == kScoreWeight || name == kScoreBias) names.push_back(name);
    }
    return names;
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor y = source_->forward(x, batch, state);
    const Projected p = project(x, y, batch.positions(x, start_of(state, "position")));
    const LatteResult result = mix_projected(p, batch, state);
    if (latents_ > 0) keep_latte(state, result);
    return project_output(result.o, x);
  }

  // Operands of the output rule, [B,T,H,·]; undefined where the variant does not have them.
  struct Projected {
    Tensor query_logits, key_logits, v, window_q, window_k;
    Tensor plain_q, plain_k;  // the window's, before rotation
    Tensor score;             // [B,T,Hkv,2], if it is learned

    Projected part(int64_t first, int64_t count) const {
      const auto of = [&](const Tensor& x) { return x.defined() ? x.narrow(1, first, count) : x; };
      return {of(query_logits), of(key_logits), of(v), of(window_q), of(window_k), of(plain_q), of(plain_k), of(score)};
    }
  };

  // Pairs read beside the window, summed over the query heads: those in the cache and the average number of those
  // waiting.
  double pairs_beside_window(int64_t tokens) const {
    const CacheRule& rule = cache_->rule();
    double pairs = 0;
    for (const int64_t most : rule.most) {
      const int64_t old = std::max<int64_t>(0, tokens - rule.window), waiting = std::min(old, rule.chunk / 2);
      if (most > 0) pairs += static_cast<double>(waiting + std::min(most, old - waiting));
    }
    const int64_t queries_per_key = settings_.heads / settings_.kv_heads;
    return pairs * static_cast<double>(queries_per_key);
  }

  void read_score(JsonReader& settings, int64_t dim) {
    if (!learns_score_) return;
    settings.fail_if(!settings_.window || latents_ == 0, "\"score\" is of a cache, which needs a window and latents");
    const at::NoGradGuard no_grad;
    const double spread = 1 / std::sqrt(static_cast<double>(dim));
    register_parameter(score_weight_, kScoreWeight, at::randn({2 * settings_.kv_heads, dim}) * spread, Role::kMatrix);
    register_parameter(score_bias_, kScoreBias, at::zeros({2 * settings_.kv_heads}), Role::kGain);
  }

  // The learned scores of x's pairs, [B,T,Hkv,2]; undefined if they are not learned. Computed in float32 or float64: in
  // shorter types too many would tie.
  Tensor scored(const Tensor& x) const {
    if (!cache_ || !score_weight_.defined()) return {};
    const at::NoGradGuard no_grad;
    const NoAutocast as_given;
    const auto type = accumulation_type({x});
    const Tensor scores = at::linear(x.to(type), score_weight_.to(type), score_bias_.to(type));
    return scores.unflatten(2, {settings_.kv_heads, 2});
  }

  Projected project(const Tensor& x, const Tensor& y, const Tensor& positions) const {
    Projected p = project_latents(y);
    // R-SWA has no latents: its window's q and k come from the source.
    project_window(p, x, latents_ > 0 ? x : y, positions);
    p.score = scored(x);
    return p;
  }

  // Softmax attention over all earlier tokens.
  Tensor teacher(const Projected& p) const {
    WindowAttentionOptions every_key = settings_;
    every_key.window = std::nullopt;
    return std::get<0>(window_attention(p.window_q, p.window_k, p.v, every_key));
  }

  LatteResult mix_projected(const Projected& p, const Batch& batch, SequenceState* state) const {
    return cache_ ? mix_cached(p, batch, state) : mix(p, batch, state);
  }

  Projected project_latents(const Tensor& y) const {
    Projected p;
    if (latents_ == 0) return p;
    const auto logits = forward_all(y, {latent_q_.get(), latent_k_.get()});
    p.query_logits = split_heads(logits[0], settings_.heads);
    p.key_logits = split_heads(logits[1], settings_.heads);
    if (window_logit_.defined()) {
      const Tensor raised = p.query_logits.narrow(3, 0, 1) + kLogitUnit * window_logit_.unsqueeze(1);
      p.query_logits = at::cat({raised, p.query_logits.narrow(3, 1, latents_)}, 3);
    }
    return p;
  }

  // Computes v from x, and the window's q and k from `from`.
  void project_window(Projected& p, const Tensor& x, const Tensor& from, const Tensor& positions) const {
    const bool together = settings_.window && from.is_same(x);
    std::vector<Tensor> all;
    if (together) all = forward_all(x, {v_.get(), window_q_.get(), window_k_.get()});
    p.v = split_heads(together ? all[0] : v_->forward(x), settings_.kv_heads);
    if (!settings_.window) return;
    if (!together) all = forward_all(from, {window_q_.get(), window_k_.get()});
    p.window_q = split_heads(all[all.size() - 2], settings_.heads);
    p.window_k = split_heads(all.back(), settings_.kv_heads);
    norms_->normalize(p.window_q, p.window_k);
    p.plain_q = p.window_q;
    p.plain_k = p.window_k;
    rotate_queries_and_keys(p.window_q, p.window_k, positions, settings_.rotary);
  }

  LatteResult mix(const Projected& p, const Batch& batch, SequenceState* state) const {
    if (!settings_.window) {
      return latte(p.query_logits, p.key_logits, p.v, settings_.causal, latte_start(state, p.key_logits, p.v, batch),
                   batch.cu_seqlens);
    }
    JoinedKeys keys{p.window_k, p.v, std::nullopt, batch.cu_seqlens};
    if (state) keys = advance_ring(*state, p.window_k, p.v, *settings_.window, batch);
    WindowAttentionOptions call = settings_;
    call.cu_seqlens = batch.cu_seqlens;
    if (latents_ > 0) {
      const LatteState start = latte_start(state, p.key_logits, p.v, batch);
      return macchiato(p.query_logits, p.key_logits, p.v, p.window_q, keys, {call, start});
    }
    return {attend_joined(p.window_q, keys, call), {}, {}, {}};
  }

  // Reads dense tokens after `state`.
  ExactRead read_cached(const Projected& p, SequenceState& state) const {
    const LatteState start{state.at("latte_state"), state.at("latte_normalizer"), state.at("latte_maximum")};
    const auto one = [&] { return surprise(p.query_logits, p.key_logits, p.v, start).unsqueeze(3); };
    const Tensor score = p.score.defined() ? p.score : one();
    return cache_->read({p.window_q, p.plain_q, p.window_k, p.plain_k, p.v, score}, state);
  }

  ExactRead read_packed(const Projected& p, SequenceState& state, const Tensor& cu_seqlens) const {
    return join_in_time(read_one_by_one(
        state, state_layout(), cu_seqlens,
        [&](auto& row, int64_t first, int64_t count) { return read_cached(p.part(first, count), row); }));
  }

  LatteResult mix_cached(const Projected& p, const Batch& batch, SequenceState* state) const {
    const NoAutocast as_given;
    const auto type = accumulation_type({p.query_logits, p.key_logits, p.v, p.window_q, p.window_k});
    SequenceState nothing;
    if (!state) nothing = zero_state(batch.rows(p.v), p.v.options().requires_grad(false));
    SequenceState& memory = state ? *state : nothing;
    const LatteState start = latte_start(state, p.key_logits, p.v, batch);
    const bool packed = batch.cu_seqlens && memory.rows() > 0;
    const Mixed mixed =
        mix_pairs(p.query_logits, packed ? read_packed(p, memory, *batch.cu_seqlens) : read_cached(p, memory));
    LatteResult result =
        latte_with_weights(mixed.latents, p.key_logits, p.v.to(type), /*causal=*/true, start, batch.cu_seqlens);
    result.o = (mixed.o + result.o).to(p.v.scalar_type());
    return result;
  }

  Tensor cached_reference(const Projected& p, HeldPairs* held) const {
    const int64_t heads = settings_.heads;
    const auto all = [&](const Tensor& x) { return expand_heads(x, heads); };
    const auto one = [&] { return surprise_reference(p.query_logits, p.key_logits, p.v).unsqueeze(3); };
    const Tensor score = p.score.defined() ? p.score : one();
    const CachedReference in{p.query_logits,  p.key_logits, all(p.v),       p.window_q,
                             all(p.window_k), p.plain_q,    all(p.plain_k), score};
    return macchiato_cached_reference(in, cache_->rule(), held);
  }

  AttentionSettings settings_;  // of the window, if there is one; otherwise the mixer is Latte alone
  std::optional<SparseCache> cache_;
  bool learns_score_ = false;
  int64_t latents_;  // per head; 0: R-SWA, the window alone with q and k from the source
  std::shared_ptr<Source> source_;
  std::shared_ptr<Linear> latent_q_, latent_k_, window_q_, window_k_, v_;
  std::optional<OutputProjection> o_;
  std::optional<QkNorms> norms_;
  Tensor window_logit_;  // [H], in units of kLogitUnit
  // [2 Hkv,D], [2 Hkv]: learned scores; per head one for lasting and one for fading pairs
  Tensor score_weight_, score_bias_;
};

// `carried` holds Latte's state, then the window's keys and values.
Tensors macchiato_call(const Tensors& in, const Tensors& carried) {
  MacchiatoOptions options;
  options.window = kCaseWindow;
  PastKeys past;
  if (!carried.empty()) {
    options.start = {carried[0], carried[1], carried[2]};
    past = {carried[3], carried[4], {}};
  }
  const Tensor &v = in[2], &window_k = in[4];
  const JoinedKeys keys = join_past(past, window_k, v, {});
  Tensors out = macchiato(in[0], in[1], v, in[3], keys, options).tensors();
  const int64_t kept = std::min(kCaseWindow - 1, keys.k.size(1)), first = keys.k.size(1) - kept;
  return join(out, {keys.k.detach().narrow(1, first, kept), keys.v.detach().narrow(1, first, kept)});
}

// What `cortado bench ops` measures.
OperatorCase macchiato_case() {
  OperatorCase c{.name = "macchiato", .operation = "macchiato"};
  c.note = concat("Latte and a window of ", kCaseWindow, " keys");
  c.inputs = [](const OperatorSizes& s) {
    return Tensors{heads_of(s, s.size + 1), heads_of(s, s.size), heads_of(s, s.size), heads_of(s, s.size),
                   heads_of(s, s.size)};
  };
  c.call = macchiato_call;
  c.reference = [](const Tensors& in) {
    return Tensors{macchiato_reference(in[0], in[1], in[2], in[3], in[4], {.window = kCaseWindow})};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s), 3 * channels(s)} + window_work(s, kCaseWindow);
  };
  return c;
}

std::vector<MechanismOption> substitute_options() {
  std::vector<MechanismOption> options{
      {.name = "window", .help = "keys of the softmax part", .low = 1, .high = 1 << 30, .fallback = kPapersWindow},
      {.name = "source",
       .help = "what latents are made of: x, conv or rg_lru",
       .words = names_in(macchiato_sources()),
       .fallback = "conv"},
      {.name = "window_logit",
       .help = "where the window's logit starts",
       .high = 1e4,
       .whole = false,
       .fallback = 20.0},
      {.name = "latents", .help = "latents of all heads together (default: 16 a head)", .low = 1, .high = 1 << 20}};
  for (const MechanismOption& option : cache_options()) options.push_back(option);
  return options;
}

}  // namespace

extern const Mechanism kMacchiato = {
    .name = "macchiato",
    .family = "linear attention + window",
    .paper = "Latte-Macchiato (2025) eq. 15-19",
    .equation = "o_t = p(0|t) window_t + sum_{l>=1} p(l|t) sum_{s<=t} p(s|l,t) v_s",
    .state = "L (d + 2) + 2 (w-1) Hkv d + D",
    .primitives = {"latte_scan", "gated_scan", "elementwise_scan", "running_max", "window_attention", "short_conv"},
    .bidirectional = true,
    .make = construct<MacchiatoMixer>,
    .compare = R"({"window": 129, "source": "rg_lru"})",
    .latents = true,
    .variants = {{"macchiato-x", R"({"source": "x"})"}, {"macchiato-conv", R"({"source": "conv", "taps": 3})"}},
    .substitute =
        SoftmaxSubstitute{
            .renamed = {{"q", "window_q"}, {"k", "window_k"}},
            .complete = complete_layer,
            .help = "a window and Latte's latents",
            .options = substitute_options(),
            .next_token = true,
        },
    .memory =
        MemoryKind{
            .name = "macchiato", .options = cache_options(), .learned = {{"latents", nullptr}}, .weights = "macchiato"},
    .operation = macchiato_case,
};

}  // namespace cortado
