#include <algorithm>
#include <limits>

#include "cortado/mechanisms/macchiato/cache.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/mechanisms/shared/pairs.h"

namespace cortado {

Tensor macchiato_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v,
                           const Tensor& window_q, const Tensor& window_k, const WindowAttentionOptions& options) {
  const int64_t latents = key_logits.size(3);
  const Tensor p = at::softmax(query_logits, -1);
  const Tensor local = std::get<0>(window_attention_reference(window_q, window_k, v, options));
  return p.narrow(3, 0, 1) * local + latte_reference(p.narrow(3, 1, latents), key_logits, v, options.causal);
}

namespace {

using Places = std::vector<int64_t>;

// One head of one sequence: query_logits [T,L+1], key_logits [T,L], the others [T,·], score [T,1 or 2].
struct CachedHead {
  Tensor query_logits, key_logits, v, q, k, plain_q, plain_k, score;
  const CacheRule& rule;
  int64_t most;  // λ

  Places cache = {};
  HeldPairs held = {};

  static Tensor take(const Tensor& x, const Places& places) { return x.index_select(0, at::tensor(places, at::kLong)); }

  Tensor logits(const Tensor& query, const Tensor& keys, const Places& places) const {
    const double scale = rule.scores.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(0))));
    const Tensor s = at::matmul(take(keys, places), query) * scale;
    return rule.scores.softcap ? (s / *rule.scores.softcap).tanh() * *rule.scores.softcap : s;
  }

  // Rotates x [T,K] by the angles of positions `tokens`.
  Tensor turned(const Tensor& x, const Tensor& tokens) const {
    if (!rule.rotary) return x;
    return apply_rotary(x.unsqueeze(0).unsqueeze(2), tokens.unsqueeze(0), *rule.rotary).squeeze(2).squeeze(0);
  }

  // Pairs first..end-1 compete with those in the cache. The highest lasting scores stay, and among the rest the highest
  // faded scores. Among equals (score_tie) the older stays.
  void judge(int64_t t, int64_t first, int64_t end) {
    for (int64_t s = first; s < end; ++s) cache.push_back(s);
    RankedPairs ranked;
    for (const int64_t s : cache) {
      ranked.emplace_back(score[s][0].item<double>(), s);
      held.scores[t][s] = ranked.back().first;
    }
    const double tie = score_tie(v.scalar_type());
    double near = 0;
    for (const int64_t s : cache) {
      near = std::max(near, tie * std::max(v[s].norm().item<double>(), score[s].abs().max().item<double>()));
    }
    rank_by_definition(ranked, near, tie);
    const auto lasting = std::min(ranked.size(), static_cast<size_t>(rule.lasting(most)));
    RankedPairs others(ranked.begin() + static_cast<std::ptrdiff_t>(lasting), ranked.end());
    for (auto& [value, s] : others) value = rule.faded(score[s][-1].item<double>(), t - s);
    rank_by_definition(others, near, tie);
    std::copy(others.begin(), others.end(), ranked.begin() + static_cast<std::ptrdiff_t>(lasting));
    cache.clear();
    for (size_t n = 0; n < std::min(ranked.size(), static_cast<size_t>(most)); ++n) cache.push_back(ranked[n].second);
    std::sort(cache.begin(), cache.end());
  }

  // o_t = p(0|t) Σ_{s in W ∪ G} softmax(s) v_s + Σ_l p(l|t) Σ_{s≤t} softmax(θ_l)_s v_s. State 0 has the logit a_0 +
  // lse(W ∪ G) - lse(W), so that the window's logit a_0 weighs all of W and G.
  Tensor attend(int64_t t, int64_t judged) const {
    Places window, exact, all;
    for (int64_t s = std::max<int64_t>(0, t - rule.window + 1); s <= t; ++s) window.push_back(s);
    for (int64_t s = judged; most > 0 && s <= t - rule.window; ++s) exact.push_back(s);
    const Tensor near = logits(q[t], k, window);
    Tensor scores = near, values = take(v, window);
    const auto add = [&](const Tensor& more, const Places& places) {
      scores = at::cat({scores, more});
      values = at::cat({values, take(v, places)});
    };
    if (!exact.empty()) add(logits(q[t], k, exact), exact);
    if (!cache.empty()) {
      const int64_t chunk = t / rule.chunk * rule.chunk;
      Tensor before = at::zeros({k.size(0)}, at::kLong);
      for (const int64_t s : cache) before[s] = rule.before(s, chunk);
      const Tensor query = turned(plain_q.slice(0, t, t + 1), at::full({1}, t - chunk, at::kLong)).squeeze(0);
      add(logits(query, turned(plain_k, -before), cache), cache);
    }
    const Tensor raised = query_logits[t][0] + scores.logsumexp(0) - near.logsumexp(0);
    const Tensor p = at::softmax(at::cat({raised.unsqueeze(0), query_logits[t].slice(0, 1)}), 0);
    const Tensor latents = at::matmul(at::softmax(key_logits.slice(0, 0, t + 1), 0).t(), v.slice(0, 0, t + 1));
    return p[0] * at::matmul(at::softmax(scores, 0), values) + at::matmul(p.slice(0, 1), latents);
  }

  Tensor run() {
    const int64_t tokens = v.size(0);
    std::vector<Tensor> outputs;
    held.places = at::full({tokens, tokens}, -1, at::kLong);
    held.scores = at::full({tokens, tokens}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    for (int64_t t = 0, judged = 0; t < tokens; ++t) {
      const int64_t now = rule.judged(t);
      if (now > judged && most > 0) judge(t, judged, now);
      judged = now;
      held.places[t].slice(0, 0, judged).fill_(2);
      held.places[t].slice(0, most > 0 ? judged : std::max<int64_t>(0, t - rule.window + 1), t + 1).fill_(0);
      for (const int64_t s : cache) held.places[t][s] = 1;
      outputs.push_back(attend(t, judged));
    }
    return at::stack(outputs);
  }
};

}  // namespace

Tensor surprise_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = v.size(1), heads = query_logits.size(2), kv_heads = v.size(2);
  const Tensor weights = at::softmax(query_logits.slice(3, 1), -1), values = v.repeat_interleave(heads / kv_heads, 2);
  std::vector<Tensor> wrong;
  for (int64_t t = 0; t < tokens; ++t) {
    Tensor answer = at::zeros_like(values.select(1, t));
    if (t > 0) {
      const Tensor latents =
          at::einsum("bshl,bshv->bhlv", {at::softmax(key_logits.slice(1, 0, t), 1), values.slice(1, 0, t)});
      answer = at::einsum("bhl,bhlv->bhv", {weights.select(1, t), latents});
    }
    wrong.push_back((answer - values.select(1, t)).norm(2, -1).view({v.size(0), kv_heads, -1}).mean(-1));
  }
  return wrong.empty() ? at::zeros({v.size(0), 0, kv_heads}, v.options()) : at::stack(wrong, 1);
}

namespace {

// score [T,1 or 2]: replaces the lasting score by the mean over neighbouring tokens; the first token is scored alone.
Tensor by_span(const Tensor& score, int64_t span) {
  Tensor means = score.clone();
  for (int64_t t = 1; t < score.size(0); ++t) {
    means[t][0] = score.slice(0, std::max<int64_t>(1, t - span), t + span + 1).select(1, 0).mean();
  }
  return means;
}

}  // namespace

Tensor macchiato_cached_reference(const CachedReference& in, const CacheRule& rule, HeldPairs* held) {
  if (in.v.size(1) == 0) return at::zeros_like(in.v);
  const int64_t heads = in.v.size(2), repeat = heads / in.score.size(2);
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < in.v.size(0); ++b) {
    std::vector<Tensor> outputs, places, scores;
    for (int64_t h = 0; h < heads; ++h) {
      const auto of = [&](const Tensor& x) { return x[b].select(1, h); };
      const Tensor score = by_span(in.score[b].select(1, h / repeat), rule.span);
      CachedHead head{of(in.query_logits), of(in.key_logits), of(in.v), of(in.q), of(in.k),
                      of(in.plain_q),      of(in.plain_k),    score,    rule,     rule.most[h / repeat]};
      outputs.push_back(head.run());
      places.push_back(head.held.places);
      scores.push_back(head.held.scores);
    }
    if (held && b == 0) *held = {at::stack(places), at::stack(scores)};
    rows.push_back(at::stack(outputs, 1));
  }
  return at::stack(rows);
}

}  // namespace cortado
