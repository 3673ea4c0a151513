#include "cortado/mechanisms/macchiato/cache.h"

#include <algorithm>
#include <map>

#include "cortado/mechanisms/latte/op.h"
#include "cortado/mechanisms/shared/pairs.h"
#include "cortado/mechanisms/shared/ring.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

// Below every logit, and finite: less itself it is 0.
constexpr double kNever = -1e30;

PairsRead nothing(const Tensor& q, const Tensor& v) {
  const auto type = accumulation_type({q, v});
  return {at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, v.options()),
          at::full({q.size(0), q.size(1), q.size(2)}, -kInfinity, q.options().dtype(type))};
}

PairsRead attend(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options) {
  const auto [o, lse, largest] = window_attention(q, k, v, options);
  return {o, lse};
}

PairsRead join_reads(const std::vector<PairsRead>& parts) {
  if (parts.size() == 1) return parts[0];
  std::vector<Tensor> o, lse;
  for (const PairsRead& part : parts) {
    o.push_back(part.o);
    lse.push_back(part.lse);
  }
  return {at::cat(o, 1), at::cat(lse, 1)};
}

// [rows] of each row's first place that counts; none where that is 0 in all.
OptionalTensor first_keys(const std::vector<int64_t>& first, const Tensor& like) {
  if (std::all_of(first.begin(), first.end(), [](int64_t place) { return place == 0; })) return std::nullopt;
  return at::tensor(first, at::kLong).to(like.device());
}

// These heads (dimension 2), in their order; all of them as they are.
Tensor heads_of(const Tensor& x, const std::vector<int64_t>& heads) {
  if (static_cast<int64_t>(heads.size()) == x.size(2)) return x;
  return x.index_select(2, at::tensor(heads, at::kLong).to(x.device()));
}

// x [B,T,h,K] turned by `tokens` [B,T] of 0..C, back or forth.
Tensor turned(const Tensor& x, const Tensor& tokens, const RotaryTable& turns, bool back) {
  const auto rows = [&](const Tensor& table) {
    return table.to(x.device()).index_select(1, tokens.flatten()).view({tokens.size(0), tokens.size(1), 1, -1});
  };
  const Tensor sin = rows(turns.sin);
  return rotate(x, {rows(turns.cos), back ? -sin : sin});
}

}  // namespace

// Of a piece of a call's tokens, which lies in one chunk.
struct SparseCache::Rows {
  std::vector<int64_t> position;  // of each row's first token
  int64_t before;                 // places of the keys and values before it
  int64_t count = 0;              // its tokens

  // Of a row's token, also of one long ago.
  int64_t place(size_t row, int64_t token) const { return before + token - position[row]; }
  int64_t room(int64_t chunk) const {
    int64_t least = chunk;
    for (const int64_t first : position) least = std::min(least, chunk - first % chunk);
    return least;
  }
  void move_on() {
    for (int64_t& first : position) first += count;
    before += count;
  }
};

std::string SparseCache::Part::name(const char* what) const { return concat("cache_", what, "_", most); }

SparseCache::SparseCache(CacheRule rule, int64_t head_dim) : rule_(std::move(rule)) {
  if (rule_.rotary) {
    const Tensor tokens = at::arange(rule_.chunk + 1, at::kLong).unsqueeze(0);
    turns_ = rotary_table(tokens, head_dim, *rule_.rotary, at::kFloat);
    wide_turns_ = rotary_table(tokens, head_dim, *rule_.rotary, at::kDouble);
  }
  std::map<int64_t, std::vector<int64_t>> alike;
  for (size_t head = 0; head < rule_.most.size(); ++head) {
    if (rule_.most[head] > 0) alike[rule_.most[head]].push_back(static_cast<int64_t>(head));
  }
  for (const auto& [most, heads] : alike) parts_.push_back({most, heads});
}

void SparseCache::declare(StateLayout& layout, const std::vector<int64_t>& pair) const {
  const auto unjudged = [rule = rule_](int64_t tokens) { return rule.unjudged(tokens); };
  for (const char* name : {"keys", "values"}) layout.ring(name, pair, unjudged);
  layout.scan_ring("scores", {pair[0]}, unjudged, {});
  for (const Part& part : parts_) {
    const auto cached = [rule = rule_, most = part.most](int64_t tokens) {
      return std::min(most, rule.judged(tokens));
    };
    const auto heads = static_cast<int64_t>(part.heads.size());
    layout.scan_ring(part.name("keys"), {heads, pair[1]}, cached, {});  // float32: they are turned again and again
    layout.ring(part.name("values"), {heads, pair[1]}, cached);
    for (const char* what : {"scores", "places"}) layout.scan_ring(part.name(what), {heads}, cached, {});
  }
}

PairsRead SparseCache::read_waiting(const CacheInputs& in, const JoinedKeys& all, const Rows& rows) const {
  std::vector<int64_t> first;
  for (size_t row = 0; row < rows.position.size(); ++row) {
    first.push_back(rows.place(row, rule_.judged(rows.position[row])));
  }
  const int64_t least = first.empty() ? 0 : *std::min_element(first.begin(), first.end());
  const int64_t there = rows.before + rows.count - rule_.window - least;  // the last query's window begins behind them
  if (there <= 0 || parts_.empty()) return nothing(in.q, all.v);
  for (int64_t& place : first) place = std::min(place - least, there);
  WindowAttentionOptions options = rule_.scores;
  options.first_key = first_keys(first, in.q);
  PairsRead read = attend(in.q, all.k.narrow(1, least, there), all.v.narrow(1, least, there), options);
  if (std::find(rule_.most.begin(), rule_.most.end(), 0) == rule_.most.end()) return read;
  std::vector<int64_t> none;  // where no pair waits
  for (const int64_t most : rule_.most) none.push_back(most == 0);
  const Tensor hidden = at::tensor(none, at::kLong).to(in.q.device(), at::kBool);
  read.lse = read.lse.masked_fill(expand_heads(hidden, in.q.size(2), 0), -kInfinity);
  return read;
}

Tensor SparseCache::from_chunk(const Tensor& plain_q, const std::vector<int64_t>& position) const {
  if (!rule_.rotary) return plain_q;
  const Tensor first = at::tensor(position, at::kLong).to(plain_q.device()).unsqueeze(1);
  const Tensor tokens = (first + at::arange(plain_q.size(1), first.options())).remainder(rule_.chunk);
  return turned(plain_q, tokens, plain_q.scalar_type() == at::kDouble ? wide_turns_ : turns_, /*back=*/false);
}

Tensor SparseCache::turn_on(const Tensor& k, const Tensor& places, int64_t first) const {
  if (!rule_.rotary || k.numel() == 0) return k;
  const auto before = [&](int64_t chunk) { return (chunk - places).clamp_max(rule_.distance); };
  const Tensor tokens = (before(first) - before(first - rule_.chunk)).to(at::kLong).flatten(1);
  const RotaryTable& turns = k.scalar_type() == at::kDouble ? wide_turns_ : turns_;
  return turned(k.reshape({k.size(0), -1, 1, k.size(3)}), tokens, turns, /*back=*/true).view(k.sizes());
}

PairsRead SparseCache::read_cached(const Tensor& far_q, const SequenceState& state, const Rows& rows) const {
  const Tensor& values = state.at("values");
  PairsRead read;
  const int64_t repeat = far_q.size(2) / static_cast<int64_t>(rule_.most.size());
  for (const Part& part : parts_) {
    const Tensor &k = state.at(part.name("keys")), &v = state.at(part.name("values"));
    const int64_t places = k.size(1);
    if (places == 0) continue;
    std::vector<int64_t> first, heads;
    for (const int64_t position : rows.position) {
      first.push_back(places - std::min(part.most, rule_.judged(position)));
    }
    for (const int64_t head : part.heads) {
      for (int64_t i = 0; i < repeat; ++i) heads.push_back(head * repeat + i);
    }
    WindowAttentionOptions options = rule_.scores;
    options.causal = false;
    options.first_key = first_keys(first, far_q);
    const PairsRead some = attend(heads_of(far_q, heads), k.to(far_q.scalar_type()), v, options);
    if (static_cast<int64_t>(heads.size()) == far_q.size(2)) return some;
    if (!read.o.defined()) read = nothing(far_q, values);
    const Tensor numbers = at::tensor(heads, at::kLong).to(far_q.device());
    read = {read.o.index_copy(2, numbers, some.o), read.lse.index_copy(2, numbers, some.lse)};
  }
  return read.o.defined() ? read : nothing(far_q, values);
}

// Pairs that compete for a part's places, the oldest first: k, v [b,E,h,K], score and place [b,E,h].
struct SparseCache::Candidates {
  Tensor k, v, scores, places;

  // The `most` highest scores, of equals the older.
  void keep(int64_t most) {
    if (scores.size(1) <= most) return;
    const double tie = score_tie(scores.scalar_type());
    const Tensor longest = v.detach().to(scores.scalar_type()).norm(2, -1).nan_to_num(0, 0).amax(1, true);
    const Tensor largest = scores.abs().nan_to_num(0, 0).amax(1, true);  // a learned one is a difference, too
    const Tensor stay = by_age(in_order(scores, at::maximum(longest, largest) * tie, tie), 0, most);
    for (Tensor* x : {&k, &v, &scores, &places}) *x = gather_pairs(*x, stay);
  }
};

SparseCache::Candidates SparseCache::candidates(const Part& part, const JoinedKeys& all, const Tensor& scores,
                                                const Rows& rows, const std::vector<int64_t>& numbers,
                                                const SequenceState& state) const {
  const Tensor &keys = state.at(part.name("keys")), &kept_places = state.at(part.name("places"));
  const auto row = static_cast<size_t>(numbers[0]);  // all have this one's position
  const int64_t position = rows.position[row], first = rule_.judged(position - 1);
  const int64_t count = rule_.judged(position) - first, place = rows.place(row, first);
  const Tensor chosen = at::tensor(numbers, at::kLong).to(keys.device());
  const bool whole = numbers.size() == rows.position.size();
  const auto rows_of = [&](const Tensor& x) { return whole ? x : x.index_select(0, chosen); };
  const auto leaving = [&](const Tensor& x) { return heads_of(rows_of(x).narrow(1, place, count), part.heads); };
  const auto there = [&](const Tensor& old) { return last_places(rows_of(old), std::min(part.most, first)); };
  const auto with_old = [&](const char* what, const Tensor& added) {
    return at::cat({there(state.at(part.name(what))), added}, 1);
  };
  // The ring's keys are rotated by their places in the text.
  const Tensor back = at::full({1, count}, -position, chosen.options());
  const Tensor plain = leaving(all.k).to(keys.scalar_type());
  const Tensor left = rule_.rotary ? apply_rotary(plain, back, *rule_.rotary) : plain;
  const Tensor added = at::arange(first, first + count, kept_places.options()).view({1, count, 1});
  const Tensor v = with_old("values", leaving(all.v));
  return {at::cat({turn_on(there(keys), there(kept_places), position), left}, 1), v,
          with_old("scores", leaving(scores)), with_old("places", added.expand({v.size(0), count, v.size(2)}))};
}

void SparseCache::judge(const Part& part, const JoinedKeys& all, const Tensor& scores, const Rows& rows,
                        SequenceState& state) const {
  std::map<int64_t, std::vector<int64_t>> alike;  // rows by their position
  for (size_t row = 0; row < rows.position.size(); ++row) {
    const int64_t position = rows.position[row];
    if (position % rule_.chunk == 0 && rule_.judged(position) > rule_.judged(position - 1)) {
      alike[position].push_back(static_cast<int64_t>(row));
    }
  }
  for (const auto& [position, numbers] : alike) {
    Candidates pairs = candidates(part, all, scores, rows, numbers, state);
    pairs.keep(part.most);
    const auto put = [&](const char* what, const Tensor& some) {
      Tensor& cache = state.at(part.name(what));
      if (numbers.size() == rows.position.size()) {
        cache = some;
        return;
      }
      const int64_t places = std::max(some.size(1), cache.size(1));
      const Tensor chosen = at::tensor(numbers, at::kLong).to(cache.device());
      cache = right_aligned(cache, places).index_copy(0, chosen, right_aligned(some, places));
    };
    put("keys", pairs.k);
    put("values", pairs.v);
    put("scores", pairs.scores);
    put("places", pairs.places);
  }
}

ExactRead SparseCache::read(const CacheInputs& in, SequenceState& state) const {
  const int64_t tokens = in.q.size(1);
  if (tokens == 0) return {nothing(in.q, in.v), nothing(in.q, in.v), nothing(in.q, in.v)};
  Rows rows{numbers_of(state.at(StateLayout::kPosition)), state.at("keys").size(1)};
  const JoinedKeys all = join_with_ring(state, in.k, in.v, {});
  const Tensor scores = at::cat({state.at("scores"), in.score}, 1);
  WindowAttentionOptions near = rule_.scores;
  near.window = rule_.window;
  near.first_key = all.first_key;
  const Tensor far_q = from_chunk(in.plain_q, rows.position);
  std::vector<PairsRead> waiting, cached;
  for (int64_t first = 0; first < tokens; first += rows.count) {
    rows.count = std::min(tokens - first, rows.room(rule_.chunk));
    const auto part = [&](const Tensor& x) { return x.narrow(1, first, rows.count); };
    waiting.push_back(read_waiting({part(in.q), {}, {}, {}, {}}, all, rows));
    cached.push_back(read_cached(part(far_q), state, rows));
    rows.move_on();
    for (const Part& each : parts_) judge(each, all, scores, rows, state);
  }
  int64_t kept = 0;
  for (const int64_t position : rows.position) kept = std::max(kept, rule_.unjudged(position));
  kept = std::min(kept, all.k.size(1));
  state.at("keys") = last_places(all.k, kept);
  state.at("values") = last_places(all.v, kept);
  state.at("scores") = last_places(scores, kept);
  return {attend(in.q, all.k, all.v, near), join_reads(waiting), join_reads(cached)};
}

ExactRead join_in_time(const std::vector<ExactRead>& reads) {
  std::vector<PairsRead> window, waiting, cached;
  for (const ExactRead& read : reads) {
    window.push_back(read.window);
    waiting.push_back(read.waiting);
    cached.push_back(read.cached);
  }
  return {join_reads(window), join_reads(waiting), join_reads(cached)};
}

Tensor surprise(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const LatteState& start) {
  const at::NoGradGuard no_grad;
  const auto type = accumulation_type({query_logits, key_logits, v});
  const int64_t latents = key_logits.size(3), heads = query_logits.size(2), kv_heads = v.size(2);
  const Tensor weights = at::softmax(query_logits.narrow(3, 1, latents).to(type), -1);
  // What a token finds there is everything up to the one before.
  const auto before = [](const Tensor& x, double first) {
    return at::constant_pad_nd(x, {0, 0, 0, 0, 1, 0}, first).slice(1, 0, x.size(1));
  };
  const Tensor answer =
      latte_with_weights(weights, before(key_logits.to(type), kNever), before(v.to(type), 0), true, start, {}).o;
  return (answer - expand_heads(v.to(type), heads)).norm(2, -1).unflatten(2, {kv_heads, heads / kv_heads}).mean(-1);
}

Mixed mix_pairs(const Tensor& query_logits, const ExactRead& exact) {
  const auto& [window, waiting, cached] = exact;
  const auto type = accumulation_type({query_logits, window.o, window.lse});
  const Tensor logits = query_logits.to(type), own = logits.narrow(3, 0, 1);
  const Tensor seen = window.lse;
  const auto column = [&](const PairsRead& pairs) { return own + (pairs.lse - seen).to(type).unsqueeze(3); };
  const Tensor p = at::softmax(at::cat({own, column(waiting), column(cached), logits.slice(3, 1)}, 3), -1);
  Tensor o = p.narrow(3, 0, 1) * window.o.to(type);
  o = at::addcmul(o, p.narrow(3, 1, 1), waiting.o.to(type));
  o = at::addcmul(o, p.narrow(3, 2, 1), cached.o.to(type));
  return {o, p.slice(3, 3)};
}

}  // namespace cortado
