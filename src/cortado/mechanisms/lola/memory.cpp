#include "cortado/mechanisms/lola/memory.h"

#include <algorithm>
#include <map>

#include "cortado/mechanisms/lolcats/parts_op.h"
#include "cortado/mechanisms/shared/pairs.h"
#include "cortado/mechanisms/shared/ring/ring.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

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
  return lolcats_join_sums(near, phi_q.to(type), sums_, window_factor.to(type), rule_.mixture);
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
