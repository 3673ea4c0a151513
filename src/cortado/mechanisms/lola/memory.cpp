#include "cortado/mechanisms/lola/memory.h"

#include <algorithm>
#include <map>

#include "cortado/mechanisms/lola/kernel.h"
#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/mechanisms/shared/pairs.h"
#include "cortado/mechanisms/shared/ring.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

Tensor together(const Tensor& cached, const Tensor& leaving) {
  return cached.defined() ? at::cat({cached, leaving}, 1) : Tensor();
}

// The state's answers with all other candidates added; 0 if the others' weight is below rounding. features is
// [B,H,E,F].
Tensor with_others(const Tensor& answer, const Tensor& features, const Tensor& v) {
  const Tensor values = with_ones(v, answer.scalar_type()).transpose(1, 2);
  const Tensor all = answer + at::matmul(features, at::matmul(features.transpose(2, 3), values));
  const Tensor others = all - features.square().sum(-1, true) * values;
  const Tensor least = score_tie(answer.scalar_type()) * all.narrow(3, v.size(3), 1).abs();
  return others.masked_fill(others.narrow(3, v.size(3), 1).abs() <= least, 0);
}

// The candidates [B,E,H] from the highest score to the lowest. `phi` is needed only for scores by the state.
Tensor by_score(const Tensor& phi, const Tensor& v, const Tensor& scores, const Tensor& sums, LolaScore score) {
  const int64_t candidates = v.size(1), values = v.size(3);
  if (score == LolaScore::kRecent) {
    return at::arange(candidates - 1, -1, -1, v.options().dtype(at::kLong))
        .view({1, candidates, 1})
        .expand({v.size(0), candidates, v.size(2)});
  }
  const double tie = score_tie(sums.scalar_type());
  if (scored_by_state(score)) {
    const Tensor features = phi.transpose(1, 2);
    Tensor answer = at::matmul(features, sums);  // [B,H,E,V+1]
    if (score == LolaScore::kLeaveOneOut) answer = with_others(answer, features, v);
    const Tensor wrong = divide_or_zero(answer.narrow(3, 0, values), answer.narrow(3, values, 1)) - v.transpose(1, 2);
    return in_order(wrong.norm(2, -1).transpose(1, 2), v.norm(2, -1).nan_to_num(0, 0).amax(1, true) * tie, tie);
  }
  return in_order(scores, at::zeros({1, 1, 1}, scores.options()), tie);
}

LolaCache evict_composed(const LolaPairs& all, const Tensor& sums, const LolaRule& rule, const LolaFeatures& phi_k) {
  const auto features = [&](const Tensor& k) { return phi_k(k).to(sums.scalar_type()); };
  const bool by_state = scored_by_state(rule.score);
  const Tensor v = all.v.to(sums.scalar_type()), phi = by_state ? features(all.k) : Tensor();
  const int64_t candidates = v.size(1);
  Tensor order;
  {
    const at::NoGradGuard no_grad;
    order = by_score(phi, v, all.scores, sums, rule.score);
  }
  const Tensor stay = by_age(order, 0, rule.cache), go = by_age(order, rule.cache, candidates - rule.cache);
  const Tensor gone = with_ones(gather_pairs(v, go), sums.scalar_type());
  const Tensor gone_phi = by_state ? gather_pairs(phi, go) : features(gather_pairs(all.k, go));
  const Tensor added = at::matmul(gone_phi.permute({0, 2, 3, 1}), gone.transpose(1, 2));
  return {{gather_pairs(all.k, stay), gather_pairs(all.v, stay), gather_pairs(all.scores, stay)}, sums + added};
}

// Evicts by kernel.h, which reads the candidates where they lie, in the cache and in the window.
LolaCache evict_fused(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule,
                      const LolaFeatures& phi_k) {
  const int64_t rows = cache.sums.size(0), heads = cache.sums.size(1);
  const Tensor sums = cache.sums.contiguous(), new_sums = kernels::room(sums.sizes(), sums.options());
  std::vector<Tensor> dense;  // keeps the tensors alive that the call points to
  const auto timed = [&](const Tensor& x) {
    if (x.size(1) == 0) return kernels::Timed{};
    dense.push_back(kernels::dense_rows(x));
    return kernels::timed(dense.back(), heads);
  };
  const auto candidates = [&](const Tensor& cached, const Tensor& left) {
    return lola_kernel::Candidates{timed(cached), timed(left)};
  };
  const auto room = [&](int64_t width) { return kernels::room({rows, rule.cache, heads, width}, sums.options()); };
  const LolaPairs &old = cache.pairs, stay{room(old.k.size(3)), room(old.v.size(3)), {}};
  const auto features = [&](const Tensor& k) { return k.size(1) == 0 ? k : phi_k(k).to(sums.scalar_type()); };
  const Tensor phi_old = features(old.k), phi_left = features(leaving.k);
  const lola_kernel::Evict call{.batch = rows,
                                .heads = heads,
                                .cached = old.k.size(1),
                                .leaving = leaving.k.size(1),
                                .kept = rule.cache,
                                .features = sums.size(2),
                                .keys = stay.k.size(3),
                                .values = stay.v.size(3),
                                .tie = static_cast<float>(score_tie(at::kFloat)),
                                .k = candidates(old.k, leaving.k),
                                .v = candidates(old.v, leaving.v),
                                .phi = candidates(phi_old, phi_left),
                                .sums = sums.const_data_ptr<float>(),
                                .new_keys = timed(stay.k),
                                .new_values = timed(stay.v),
                                .new_sums = new_sums.data_ptr<float>()};
  lola_kernel::evict(call, kernels::parallel(sums.numel() * (call.cached + call.leaving)));
  return {stay, new_sums};
}

// Each row's first occupied entry, [rows]; nullopt if all rows are full.
OptionalTensor first_places(const std::vector<int64_t>& filled, int64_t places, const Tensor& like) {
  if (std::all_of(filled.begin(), filled.end(), [&](int64_t n) { return n == places; })) return std::nullopt;
  return (places - at::tensor(filled, at::kLong)).to(like.device());
}

// bool [rows, places], true for each row's last `filled` entries; nullopt if all rows are full.
OptionalTensor last_seen(const std::vector<int64_t>& filled, int64_t places, const Tensor& like) {
  const auto first = first_places(filled, places, like);
  if (!first) return std::nullopt;
  return at::arange(places, first->options()).unsqueeze(0) >= first->unsqueeze(1);
}

}  // namespace

LolaCache evict(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule, const LolaFeatures& phi_k) {
  const LolaPairs& old = cache.pairs;
  if (old.k.size(1) + leaving.k.size(1) > rule.cache && rule.score == LolaScore::kError && lolcats_fused::inference() &&
      lolcats_fused::takes({leaving.k, leaving.v, cache.sums})) {
    return evict_fused(cache, leaving, rule, phi_k);
  }
  const LolaPairs all{together(old.k, leaving.k), together(old.v, leaving.v), together(old.scores, leaving.scores)};
  if (all.k.size(1) <= rule.cache) return {all, cache.sums};
  return evict_composed(all, cache.sums, rule, phi_k);
}

LolaMemory::LolaMemory(SequenceState& state, const LolaRule& rule, LolaFeatures phi_k)
    : state_(state),
      rule_(rule),
      phi_k_(std::move(phi_k)),
      keys_(state.at("keys")),
      values_(state.at("values")),
      cache_keys_(state.at("cache_keys")),
      cache_values_(state.at("cache_values")),
      sums_(state.at("scan_state")),
      key_scores_(scored_by_queries(rule.score) ? state.at("key_scores") : none_),
      cache_scores_(scored_by_queries(rule.score) ? state.at("cache_scores") : none_),
      position_(numbers_of(state.at("position"))),
      kept_(numbers_of(state.at("kept"))),
      cached_(numbers_of(state.at("cached"))) {}

void LolaMemory::finish() {
  const auto put = [&](const char* name, const std::vector<int64_t>& numbers) {
    Tensor& place = state_.at(name);
    place = at::tensor(numbers, at::kLong).to(place.device());
  };
  put("kept", kept_);
  put("cached", cached_);
}

int64_t LolaMemory::room_in_chunk() const {
  int64_t room = rule_.chunk;
  for (const int64_t position : position_) room = std::min(room, rule_.chunk - position % rule_.chunk);
  return room;
}

void LolaMemory::evict(const Group& group, int64_t leaving, int64_t kept, int64_t cached) {
  const auto old = [&](const Tensor& cache) { return cache.defined() ? last_places(group.of(cache), cached) : cache; };
  const auto left = [&](const Tensor& window) {
    if (!window.defined()) return window;
    return expand_heads(group.of(window).narrow(1, window.size(1) - kept, leaving), cache_keys_.size(2));
  };
  const auto [pairs, sums] =
      cortado::evict({{old(cache_keys_), old(cache_values_), old(cache_scores_)}, group.of(sums_)},
                     {left(keys_), left(values_), left(key_scores_)}, rule_, phi_k_);
  const int64_t now = pairs.k.size(1), places = std::max(now, group.all ? 0 : cache_keys_.size(1));
  const auto put = [&](Tensor& cache, const Tensor& part) {
    if (!part.defined()) return;
    cache = group.all ? part : group.put(right_aligned(cache, places), right_aligned(part, places));
  };
  put(cache_keys_, pairs.k);
  put(cache_values_, pairs.v);
  put(cache_scores_, pairs.scores);
  sums_ = group.put(sums_, sums);
  for (const int64_t row : group.numbers) {
    kept_[row] -= leaving;
    cached_[row] = now;
  }
}

void LolaMemory::evict(const std::vector<int64_t>& leaving) {
  std::map<std::array<int64_t, 3>, std::vector<int64_t>> alike;
  for (int64_t n = 0; n < rows(); ++n) {
    if (leaving[n] > 0) alike[{leaving[n], kept_[n], cached_[n]}].push_back(n);
  }
  for (const auto& [counts, numbers] : alike) {
    Group group{{}, numbers, static_cast<int64_t>(numbers.size()) == rows()};
    if (!group.all) group.rows = at::tensor(numbers, at::kLong).to(keys_.device());
    evict(group, counts[0], counts[1], counts[2]);
  }
  if (alike.empty()) return;
  const int64_t places = *std::max_element(kept_.begin(), kept_.end());
  for (Tensor* x : {&keys_, &values_, &key_scores_}) {
    if (x->defined()) *x = last_places(*x, places);
  }
}

void LolaMemory::append(const Tensor& k, const Tensor& v, bool in_place) {
  if (in_place) {
    keys_ = state_.room().append("keys", keys_, k, kRingRoom);
    values_ = state_.room().append("values", values_, v, kRingRoom);
  } else {
    keys_ = at::cat({keys_, k}, 1);
    values_ = at::cat({values_, v}, 1);
  }
  if (key_scores_.defined()) {
    const at::NoGradGuard no_grad;
    key_scores_ =
        at::cat({key_scores_, at::zeros({k.size(0), k.size(1), key_scores_.size(2)}, key_scores_.options())}, 1);
  }
  for (int64_t n = 0; n < rows(); ++n) {
    position_[n] += k.size(1);
    kept_[n] += k.size(1);
  }
}

void LolaMemory::score_window(const Tensor& q, const Tensor& phi_q) {
  const at::NoGradGuard no_grad;
  const int64_t heads = q.size(2), tokens = q.size(1), places = keys_.size(1);
  const auto type = key_scores_.scalar_type();
  const auto products = [&](const Tensor& x, const Tensor& y) {  // [rows,H,n,P]
    return at::matmul(x.to(type).transpose(1, 2), y.to(type).permute({0, 2, 3, 1}));
  };
  const Tensor k = expand_heads(keys_, heads);
  Tensor s = products(q, k) * rule_.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  if (rule_.softcap) s = (s / *rule_.softcap).tanh() * *rule_.softcap;
  const Tensor exact = s.exp(), linear = products(phi_q, phi_k_(k));
  Tensor wrong = (exact - linear).abs();
  if (rule_.score == LolaScore::kSquared) wrong = wrong * wrong;
  if (rule_.score == LolaScore::kRatio) wrong = linear / exact;
  Tensor unseen = at::ones({tokens, places}, key_scores_.options().dtype(at::kBool)).triu(places - tokens + 1);
  if (const auto seen = last_seen(kept_, places, q)) unseen = unseen.logical_or(~seen->view({-1, 1, 1, places}));
  if (rule_.score == LolaScore::kShare) {
    const auto of_its_sum = [&](const Tensor& x) { return x / x.masked_fill(unseen, 0).sum(3, /*keepdim=*/true); };
    wrong = of_its_sum(linear) / of_its_sum(exact);
  }
  key_scores_ = key_scores_ + wrong.masked_fill(unseen, 0).sum(2).transpose(1, 2);
}

Tensor LolaMemory::attend(const Tensor& q, const Tensor& phi_q, const Tensor& window_factor) const {
  const auto type = sums_.scalar_type();
  WindowAttentionOptions options{.scale = rule_.scale, .softcap = rule_.softcap};
  options.first_key = first_places(kept_, keys_.size(1), q);
  if (cache_keys_.size(1) > 0) {
    options.extra_k = cache_keys_;
    options.extra_v = cache_values_;
    options.extra_mask = last_seen(cached_, cache_keys_.size(1), q);
  }
  const auto [o, lse, row_max] = window_attention(q, keys_, values_, options);
  const SoftmaxPart near{o.to(type), lse.to(type), row_max.to(type)};
  const Tensor phi = phi_q.to(type), factor = window_factor.to(type);
  const bool fused = lolcats_fused::takes({near.o, near.lse, near.row_max, phi, sums_, factor});
  if (fused && lolcats_fused::inference()) {
    return lolcats_fused::join_sums(near, phi, sums_, factor, rule_.mixture);
  }
  const Tensor far = at::matmul(phi.transpose(1, 2), sums_).transpose(1, 2);
  if (fused) return lolcats_fused::join(near, far, factor, rule_.mixture);
  return join_linear(near, far, factor, rule_.mixture);
}

Tensor LolaMemory::read(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q,
                        const Tensor& window_factor, bool in_place, bool by_tokens) {
  const NoAutocast as_given;
  std::vector<int64_t> leaving(rows(), 0);
  if (!by_tokens) {
    for (int64_t n = 0; n < rows(); ++n) {
      const int64_t first = std::max<int64_t>((position_[n] / rule_.chunk - 1) * rule_.chunk, 0);
      leaving[n] = std::max<int64_t>(first - (position_[n] - kept_[n]), 0);
    }
    evict(leaving);
  }
  append(k, v, in_place);
  if (by_tokens) {
    const auto too_long = [&](int64_t kept) { return kept > *rule_.token_window; };
    while (std::any_of(kept_.begin(), kept_.end(), too_long)) {
      for (int64_t n = 0; n < rows(); ++n) leaving[n] = too_long(kept_[n]);
      evict(leaving);
    }
  }
  if (key_scores_.defined()) score_window(q, phi_q);
  return attend(q, phi_q, window_factor);
}

}  // namespace cortado
