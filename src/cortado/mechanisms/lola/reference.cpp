#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "cortado/mechanisms/lola/rule.h"
#include "cortado/mechanisms/shared/pairs.h"

namespace cortado {
namespace {

// One head of one sequence: q, k, v, phi_q, phi_k are [T, ...].
struct Head {
  Tensor q, k, v, phi_q, phi_k;
  Tensor factor;  // window_factor, before the sigmoid
  const LolaRule& rule;

  std::vector<int64_t> window = {}, cache = {}, state = {};  // positions of the pairs in each memory
  std::vector<double> query_score = {};  // per pair, summed over the queries that saw it in the window
  HeldPairs held = {};                   // [T,T]: the memory that holds pair s, and its score

  double scale() const { return rule.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(1)))); }

  Tensor take(const Tensor& x, const std::vector<int64_t>& places) const {
    return x.index_select(0, at::tensor(places, at::kLong));
  }

  Tensor logits(int64_t t, const std::vector<int64_t>& places) const {
    const Tensor s = at::matmul(take(k, places), q[t]) * scale();
    return rule.softcap ? (s / *rule.softcap).tanh() * *rule.softcap : s;
  }

  double score(int64_t i) const {
    if (rule.score == LolaScore::kRecent) return static_cast<double>(i);
    if (scored_by_queries(rule.score)) return query_score[i];
    const at::NoGradGuard no_grad;
    std::vector<int64_t> held = state;
    if (rule.score == LolaScore::kLeaveOneOut) {
      std::copy_if(cache.begin(), cache.end(), std::back_inserter(held), [&](int64_t other) { return other != i; });
    }
    Tensor wrong = -v[i];
    if (!held.empty()) {
      const Tensor weights = at::matmul(take(phi_k, held), phi_k[i]);
      const Tensor total = weights.sum();
      const double own = rule.score == LolaScore::kLeaveOneOut ? phi_k[i].square().sum().item<double>() : 0;
      const double least = own == 0 ? 0 : score_tie(v.scalar_type()) * (own + total.item<double>());
      if (std::abs(total.item<double>()) > least) wrong = at::matmul(weights, take(v, held)) / total - v[i];
    }
    return wrong.norm().item<double>();
  }

  // The absolute difference below which two scores are equal.
  double near(const RankedPairs& ranked) const {
    double longest = 0;
    for (const auto& [score, i] : ranked) longest = std::max(longest, v[i].norm().item<double>());
    return scored_by_state(rule.score) ? score_tie(v.scalar_type()) * longest : 0;
  }

  // Adds `leaving` to the cache and moves the surplus, the lowest scores, to the linear state. All scores are taken
  // before anything joins the state.
  void evict(int64_t t, const std::vector<int64_t>& leaving) {
    cache.insert(cache.end(), leaving.begin(), leaving.end());
    const int64_t surplus = static_cast<int64_t>(cache.size()) - rule.cache;
    if (surplus <= 0) return;
    RankedPairs ranked;
    for (const int64_t i : cache) ranked.emplace_back(score(i), i);
    auto* row = held.scores.data_ptr<double>() + t * held.scores.size(1);
    for (const auto& [score, i] : ranked) row[i] = score;
    rank_by_definition(ranked, near(ranked), score_tie(v.scalar_type()));
    cache.clear();
    for (int64_t n = 0; n < static_cast<int64_t>(ranked.size()); ++n) {
      (n < rule.cache ? cache : state).push_back(ranked[n].second);
    }
    std::sort(cache.begin(), cache.end());
  }

  void move_on(int64_t t, int64_t chunked) {
    if (t < chunked || !rule.token_window) {
      std::vector<int64_t> old;
      while (!window.empty() && window.front() < (t / rule.chunk - 1) * rule.chunk) {
        old.push_back(window.front());
        window.erase(window.begin());
      }
      evict(t, old);
      window.push_back(t);
      return;
    }
    window.push_back(t);
    while (static_cast<int64_t>(window.size()) > *rule.token_window) {
      evict(t, {window.front()});
      window.erase(window.begin());
    }
  }

  void score_window(int64_t t) {
    if (!scored_by_queries(rule.score)) return;
    const at::NoGradGuard no_grad;
    const Tensor exact = logits(t, window).exp(), linear = at::matmul(take(phi_k, window), phi_q[t]);
    Tensor wrong = (exact - linear).abs();
    if (rule.score == LolaScore::kSquared) wrong = wrong * wrong;
    if (rule.score == LolaScore::kRatio) wrong = linear / exact;
    if (rule.score == LolaScore::kShare) wrong = (linear / linear.sum()) / (exact / exact.sum());
    for (size_t n = 0; n < window.size(); ++n) {
      query_score[window[n]] += wrong[static_cast<int64_t>(n)].item<double>();
    }
  }

  // Uses logs of the weights, so that e^s may be large. Softmax part: g e^{s-c} (lolcats), g e^s (gated), e^s (plain).
  // Linear part: φφ times 1 - g (gated) or 1.
  Tensor attend(int64_t t) const {
    std::vector<int64_t> near = cache;
    near.insert(near.end(), window.begin(), window.end());
    Tensor log_near = logits(t, near), log_far;
    const Tensor g = factor.sigmoid();
    if (rule.mixture == LolcatsMixture::kLolcats) log_near = log_near - log_near.max();
    if (rule.mixture != LolcatsMixture::kPlain) log_near = log_near + g.log();
    Tensor values = take(v, near), logs = log_near;
    if (!state.empty()) {
      log_far = at::matmul(take(phi_k, state), phi_q[t]).log();
      if (rule.mixture == LolcatsMixture::kGated) log_far = log_far + (1 - g).log();
      logs = at::cat({log_near, log_far});
      values = at::cat({values, take(v, state)});
    }
    return at::matmul(at::softmax(logs, 0), values);
  }

  void note_places(int64_t t) {
    int64_t memory = 0;
    auto* row = held.places.data_ptr<int64_t>() + t * held.places.size(1);
    for (const auto* places : {&window, &cache, &state}) {
      for (const int64_t s : *places) row[s] = memory;
      ++memory;
    }
  }

  Tensor run(int64_t chunked) {
    std::vector<Tensor> outputs;
    held.places = at::full({q.size(0), q.size(0)}, -1, at::kLong);
    held.scores = at::full({q.size(0), q.size(0)}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
    query_score.assign(q.size(0), 0.0);
    for (int64_t t = 0; t < q.size(0); ++t) {
      move_on(t, chunked);
      score_window(t);
      note_places(t);
      outputs.push_back(attend(t));
    }
    return at::stack(outputs);
  }
};

}  // namespace

Tensor lola_reference(const LolcatsInputs& in, const LolaRule& rule, int64_t chunked, HeldPairs* held) {
  const auto& [q, k, v, phi_q, phi_k, window_factor, cu_seqlens] = in;
  if (q.size(1) == 0) return at::zeros_like(v);
  std::vector<Tensor> rows;
  for (int64_t b = 0; b < q.size(0); ++b) {
    std::vector<Tensor> heads, places, scores;
    for (int64_t h = 0; h < q.size(2); ++h) {
      const auto of = [&](const Tensor& x) { return x[b].select(1, h); };
      Head head{of(q), of(k), of(v), of(phi_q), of(phi_k), window_factor[h], rule};
      heads.push_back(head.run(chunked));
      places.push_back(head.held.places);
      scores.push_back(head.held.scores);
    }
    if (held && b == 0) *held = {at::stack(places), at::stack(scores)};
    rows.push_back(at::stack(heads, 1));
  }
  return at::stack(rows);
}

}  // namespace cortado
