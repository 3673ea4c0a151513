#include "cortado/mechanisms/macchiato/cache.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "cortado/mechanisms/latte/op.h"
#include "cortado/mechanisms/macchiato/selection.h"
#include "cortado/mechanisms/shared/pairs.h"
#include "cortado/mechanisms/shared/ring/ring.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

// A logit below all others. Finite, so that subtracting it from itself gives 0.
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

// Each row's first valid entry, [rows]; nullopt if that is 0 in all rows.
OptionalTensor first_keys(const std::vector<int64_t>& first, const Tensor& like) {
  if (std::all_of(first.begin(), first.end(), [](int64_t place) { return place == 0; })) return std::nullopt;
  return at::tensor(first, at::kLong).to(like.device());
}

// Selects heads (dimension 2) in the given order; returns x unchanged if all are selected.
Tensor heads_of(const Tensor& x, const std::vector<int64_t>& heads) {
  if (static_cast<int64_t>(heads.size()) == x.size(2)) return x;
  return x.index_select(2, at::tensor(heads, at::kLong).to(x.device()));
}

}  // namespace

// Splits a call's tokens into pieces that see equal sets of cached pairs. If each row's tokens lie in one chunk, a
// piece is a row. Otherwise a piece is one chunk of one row with C entries, some of which may be empty in the row's
// first and last chunk.
class Pieces {
 public:
  Pieces(const CacheCall& call, int64_t chunk, const at::TensorOptions& options)
      : tokens_(call.tokens), rows_(static_cast<int64_t>(call.position.size())), chunk_(chunk) {
    bool whole = true;
    for (size_t row = 0; row < call.position.size(); ++row) {
      several_ = several_ || call.chunks(row, chunk) > 1;
      whole = whole && call.position[row] % chunk == 0 && call.tokens % chunk == 0;
    }
    if (!several_) return;
    std::vector<int64_t> from;
    for (size_t row = 0; row < call.position.size(); ++row) {
      const int64_t first = call.first_chunk(row, chunk);
      const int64_t before = static_cast<int64_t>(chunks_.size()) * chunk + call.position[row] - first;
      for (int64_t begin = first; begin < call.end(row); begin += chunk) {
        chunks_.push_back(begin);
        of_.push_back(row);
      }
      for (int64_t token = 0; !whole && token < tokens_; ++token) from.push_back(before + token);
    }
    if (whole) return;
    std::vector<int64_t> to(chunks_.size() * static_cast<size_t>(chunk), 0);
    for (size_t token = 0; token < from.size(); ++token)
      to[static_cast<size_t>(from[token])] = static_cast<int64_t>(token);
    to_ = at::tensor(to, at::kLong).to(options.device());
    from_ = at::tensor(from, at::kLong).to(options.device());
  }

  bool several() const { return several_; }
  size_t count() const { return chunks_.size(); }
  size_t row(size_t piece) const { return of_[piece]; }
  int64_t chunk(size_t piece) const { return chunks_[piece]; }  // the chunk's first token

  // Splits x [B,T,...] into pieces: [P,C,...].
  Tensor split(const Tensor& x) const {
    if (!several_) return x;
    const Tensor flat = x.flatten(0, 1);
    const Tensor placed = to_.defined() ? flat.index_select(0, to_) : flat;
    return placed.unflatten(0, {static_cast<int64_t>(count()), chunk_});
  }
  PairsRead join(const PairsRead& read) const { return {join(read.o), join(read.lse)}; }

 private:
  Tensor join(const Tensor& x) const {
    if (!several_) return x;
    const Tensor flat = x.flatten(0, 1);
    return (from_.defined() ? flat.index_select(0, from_) : flat).unflatten(0, {rows_, tokens_});
  }

  int64_t tokens_, rows_, chunk_;
  bool several_ = false;
  std::vector<int64_t> chunks_;
  std::vector<size_t> of_;
  Tensor to_, from_;  // index maps between tokens and entries; undefined: the order is unchanged
};

std::string SparseCache::HeadGroup::name(const char* what) const { return concat("cache_", what, "_", most); }

namespace {

// Cached keys are rotated again with every chunk, and must not be multiplied by the attention factor each time.
Rotary without_factor(Rotary rotary) {
  rotary.scaling.attention_factor = 1;
  return rotary;
}

}  // namespace

SparseCache::SparseCache(const CacheRule& rule, int64_t head_dim) : rule_(rule) {
  if (rule_.rotary) {
    constexpr int64_t kPrepared = 1024;
    const int64_t most = std::max(rule_.chunk, std::min(rule_.distance, kPrepared));
    turns_ = rotary_table(at::arange(most + 1, at::kLong).unsqueeze(0), head_dim, without_factor(*rule_.rotary));
  }
  std::map<int64_t, std::vector<int64_t>> alike;
  for (size_t head = 0; head < rule_.most.size(); ++head) {
    if (rule_.most[head] > 0) alike[rule_.most[head]].push_back(static_cast<int64_t>(head));
  }
  for (const auto& [most, heads] : alike) groups_.push_back({most, heads});
}

void SparseCache::declare(StateLayout& layout, const std::vector<int64_t>& pair) const {
  const auto unjudged = [rule = rule_](int64_t tokens) { return rule.unjudged(tokens); };
  for (const char* name : {"keys", "values"}) layout.cached_ring(name, pair, unjudged);
  const auto scored = [rule = rule_](int64_t tokens) { return rule.scored(tokens); };
  layout.scan_ring("scores", {pair[0], rule_.scores_of_pair()}, scored, {});
  for (const HeadGroup& group : groups_) {
    const auto cached = [rule = rule_, most = group.most](int64_t tokens) {
      return std::min(most, rule.judged(tokens));
    };
    const auto heads = static_cast<int64_t>(group.heads.size());
    for (const char* what : {"keys", "values"}) layout.cached_ring(group.name(what), {heads, pair[1]}, cached);
    layout.scan_ring(group.name("scores"), {heads, rule_.scores_of_pair()}, cached, {});
    layout.scan_ring(group.name("places"), {heads}, cached, {});
  }
}

PairsRead SparseCache::read_waiting(const Tensor& q, const JoinedKeys& all, const CacheCall& call,
                                    const Pieces& pieces) const {
  Tensor k, v;
  std::vector<int64_t> first;  // per row or piece, its first key
  if (pieces.several()) {
    // All pairs that wait at the end of the chunk: they precede the window of its last query.
    const int64_t there = rule_.chunk - 1;
    std::vector<int64_t> places;
    for (size_t piece = 0; piece < pieces.count(); ++piece) {
      const int64_t begin = pieces.chunk(piece) - rule_.window + 1, row = static_cast<int64_t>(pieces.row(piece));
      first.push_back(std::clamp<int64_t>(-begin, 0, there));
      for (int64_t token = begin; token < begin + there; ++token) {
        const int64_t place = std::clamp<int64_t>(call.place(pieces.row(piece), token), 0, all.k.size(1) - 1);
        places.push_back(row * all.k.size(1) + place);
      }
    }
    if (places.empty()) return pieces.join(nothing(pieces.split(q), all.v));
    const Tensor chosen = at::tensor(places, at::kLong).to(q.device());
    const auto take = [&](const Tensor& x) {
      return x.flatten(0, 1).index_select(0, chosen).unflatten(0, {static_cast<int64_t>(pieces.count()), there});
    };
    k = take(all.k);
    v = take(all.v);
  } else {
    for (size_t row = 0; row < call.position.size(); ++row) {
      first.push_back(call.place(row, rule_.judged(call.position[row])));
    }
    const int64_t least = first.empty() ? 0 : *std::min_element(first.begin(), first.end());
    const int64_t there = call.before + call.tokens - rule_.window - least;
    if (there <= 0) return nothing(q, all.v);
    for (int64_t& place : first) place = std::min(place - least, there);
    k = all.k.narrow(1, least, there);
    v = all.v.narrow(1, least, there);
  }
  WindowAttentionOptions options = rule_.scores;
  options.first_key = first_keys(first, q);
  PairsRead read = pieces.join(attend(pieces.split(q), k, v, options));
  if (std::find(rule_.most.begin(), rule_.most.end(), 0) == rule_.most.end()) return read;
  std::vector<int64_t> none;  // heads with λ = 0, where no pair waits
  for (const int64_t most : rule_.most) none.push_back(most == 0);
  const Tensor hidden = at::tensor(none, at::kLong).to(q.device(), at::kBool);
  read.lse = read.lse.masked_fill(expand_heads(hidden, q.size(2), 0), -kInfinity);
  return read;
}

Tensor SparseCache::turned(const Tensor& x, const Tensor& tokens, bool back) const {
  RotaryTable turns = turns_;
  const int64_t most = tokens.numel() == 0 ? 0 : tokens.max().item<int64_t>();
  if (most >= turns.cos.size(1) || x.scalar_type() == at::kDouble) {  // pairs from further away than the table covers
    turns = rotary_table(at::arange(most + 1, at::kLong).unsqueeze(0), x.size(3), without_factor(*rule_.rotary),
                         accumulation_type({x}));
  }
  const auto rows = [&](const Tensor& table) {
    const Tensor chosen = table.index_select(1, tokens.flatten());
    return chosen.view({tokens.size(0), tokens.size(1), 1, -1}).to(x.device());
  };
  const Tensor sin = rows(turns.sin);
  return rotate(x, {rows(turns.cos), back ? -sin : sin});
}

Tensor SparseCache::from_chunk(const Tensor& plain_q, const std::vector<int64_t>& position) const {
  if (!rule_.rotary) return plain_q;
  const Tensor first = at::tensor(position, at::kLong).unsqueeze(1);
  const Tensor q =
      turned(plain_q, (first + at::arange(plain_q.size(1), at::kLong)).remainder(rule_.chunk), /*back=*/false);
  const double factor = rule_.rotary->scaling.attention_factor;  // the keys' too
  return factor == 1 ? q : q * (factor * factor);
}

namespace {

// The entries of x [B,n,h,...] that are in the sets: [S,E,h,...].
Tensor taken(const Tensor& x, const CacheSets& sets) {
  std::vector<int64_t> sizes = sets.pairs.sizes().vec();
  if (x.dim() > 3) sizes.push_back(x.size(3));
  return x.flatten(0, 2).index_select(0, sets.pairs.flatten().to(x.device())).view(sizes);
}

}  // namespace

Tensor SparseCache::keys_of(const CacheCandidates& from, const CacheSets& sets) const {
  Tensor k = taken(from.k, sets);
  if (!rule_.rotary || k.numel() == 0) return k;
  return turned(k.view({1, -1, 1, k.size(3)}), sets.turns.view({1, -1}), /*back=*/true).view(k.sizes());
}

CacheCandidates SparseCache::candidates(const HeadGroup& group, const CacheOffers& offers, const CacheCall& call,
                                        const SequenceState& state) const {
  const auto& [all, plain_k, scores] = offers;
  const Tensor& keys = state.at(group.name("keys"));
  int64_t first = all.k.size(1), end = 0;
  for (size_t row = 0; row < call.position.size(); ++row) {
    first = std::min(first, call.place(row, rule_.judged(call.position[row])));
    end = std::max(end, call.place(row, rule_.judged(call.end(row))));
  }
  const int64_t count = std::max<int64_t>(0, end - first), old = std::clamp<int64_t>(call.before - first, 0, count);
  const auto leaving = [&](const Tensor& x) { return heads_of(x.narrow(1, first, count), group.heads); };
  // Keys in the ring are rotated by their absolute positions, so they are rotated back.
  Tensor ring = heads_of(all.k.narrow(1, first, old), group.heads).to(keys.scalar_type());
  if (rule_.rotary && old > 0) {
    const Tensor begin = at::tensor(call.position, at::kLong).to(keys.device()).unsqueeze(1);
    const Tensor back = (call.before - first) - begin - at::arange(old, begin.options());
    ring = apply_rotary(ring, back, without_factor(*rule_.rotary));
    if (const double factor = rule_.rotary->scaling.attention_factor; factor != 1) ring = ring / factor;
  }
  const Tensor added = heads_of(plain_k.narrow(1, std::max<int64_t>(0, first - call.before), count - old), group.heads);
  const Tensor& places = state.at(group.name("places"));
  const Tensor token = at::tensor(call.position, places.options()).view({-1, 1, 1}) - (call.before - first) +
                       at::arange(count, places.options()).view({1, -1, 1});
  const auto behind = [&](const char* what, const Tensor& x) { return at::cat({state.at(group.name(what)), x}, 1); };
  return {at::cat({keys, ring, added.to(keys.scalar_type())}, 1),
          behind("values", leaving(all.v).to(state.at(group.name("values")).scalar_type())),
          behind("scores", leaving(scores)),
          behind("places", token.expand({-1, -1, keys.size(2)})),
          keys.size(1),
          first};
}

PairsRead SparseCache::read_set(const HeadGroup& group, const Tensor& far_q, const Tensor& k, const Tensor& v,
                                const std::vector<int64_t>& counts) const {
  const int64_t places = k.size(1), repeat = far_q.size(2) / static_cast<int64_t>(rule_.most.size());
  if (places == 0) return nothing(far_q, v);
  std::vector<int64_t> first;
  for (const int64_t count : counts) first.push_back(places - count);
  WindowAttentionOptions options = rule_.scores;
  options.causal = false;
  options.first_key = first_keys(first, far_q);
  if (group.heads.size() == rule_.most.size()) return attend(far_q, k, v, options);
  std::vector<int64_t> heads;
  for (const int64_t head : group.heads) {
    for (int64_t i = 0; i < repeat; ++i) heads.push_back(head * repeat + i);
  }
  const PairsRead some = attend(heads_of(far_q, heads), k, v, options);
  const Tensor numbers = at::tensor(heads, at::kLong).to(far_q.device());
  const PairsRead none = nothing(far_q, v);
  return {none.o.index_copy(2, numbers, some.o), none.lse.index_copy(2, numbers, some.lse)};
}

PairsRead SparseCache::read_group(const HeadGroup& group, const Tensor& far_q, const CacheOffers& offers,
                                  const CacheCall& call, const Pieces& pieces, SequenceState& state) const {
  std::vector<int64_t> counts;
  for (const int64_t position : call.position) counts.push_back(std::min(group.most, rule_.judged(position)));
  PairsRead read;
  if (!pieces.several()) {
    read = read_set(group, far_q, state.at(group.name("keys")), state.at(group.name("values")), counts);
  }
  if (!offers.scores.defined()) return read;
  const CacheCandidates from = candidates(group, offers, call, state);
  const CacheSelection selected = select_pairs(from, call, rule_, group.most);
  if (pieces.several()) {
    const CacheSets& sets = selected.chunks;
    read = read_set(group, far_q, keys_of(from, sets), taken(from.v, sets), sets.counts);
  }
  const Tensor absent = selected.end.absent().to(from.k.device());
  const auto put = [&](const char* what, const Tensor& x) {
    state.at(group.name(what)) = x.masked_fill(x.dim() > 3 ? absent.unsqueeze(3) : absent, 0);
  };
  put("keys", keys_of(from, selected.end));
  put("values", taken(from.v, selected.end));
  put("scores", taken(from.scores, selected.end));
  put("places", taken(from.places, selected.end));
  return read;
}

Tensor SparseCache::by_span(const Tensor& scores, const CacheCall& call) const {
  const int64_t n = scores.size(1), wanted = call.before + call.tokens;
  if (rule_.span == 0) return scores.narrow(1, n - wanted, wanted);
  const Tensor begin = at::tensor(call.position, at::kLong).to(scores.device()).unsqueeze(1) + (call.tokens - n);
  // [B,n,1]: positions in the text; negative ones precede it
  const Tensor token = (begin + at::arange(n, begin.options())).unsqueeze(2);
  const Tensor counted = token.gt(0).to(scores.scalar_type());
  const auto sums = [&](const Tensor& x) {  // windowed sums of [B,n,h]
    const Tensor padded = at::constant_pad_nd(x, {0, 0, rule_.span, rule_.span});
    return padded.unfold(1, 2 * rule_.span + 1, 1).sum(-1);
  };
  const Tensor own = scores.select(3, 0);
  const Tensor means = sums(own.masked_fill(token.le(0), 0)) / sums(counted);
  const Tensor lasting = at::where(token.eq(0), own, means);
  return at::cat({lasting.unsqueeze(3), scores.slice(3, 1)}, 3).narrow(1, n - wanted, wanted);
}

ExactRead SparseCache::read(const CacheInputs& in, SequenceState& state) const {
  const int64_t tokens = in.q.size(1);
  if (tokens == 0 || in.q.size(0) == 0) return {nothing(in.q, in.v), nothing(in.q, in.v), nothing(in.q, in.v)};
  const CacheCall call{numbers_of(state.at(StateLayout::kPosition)), state.at("keys").size(1), tokens};
  const auto kept_as = state.at("keys").scalar_type();  // the cache's type, so that any split reads equal numbers
  const JoinedKeys all = join_with_ring(state, in.k.to(kept_as), in.v.to(kept_as), {});
  const Tensor scores = at::cat({state.at("scores"), in.score}, 1);
  const Tensor ranked = call.moves(rule_.chunk) ? by_span(scores, call) : Tensor();
  const Pieces pieces(call, rule_.chunk, in.q.options());
  WindowAttentionOptions near = rule_.scores;
  near.window = rule_.window;
  near.first_key = all.first_key;
  ExactRead read{attend(in.q, all.k, all.v, near), read_waiting(in.q, all, call, pieces), {}};
  const Tensor far_q = pieces.split(from_chunk(in.plain_q, call.position));
  for (const HeadGroup& group : groups_) {
    const PairsRead some = read_group(group, far_q, {all, in.plain_k, ranked}, call, pieces, state);
    if (!read.cached.o.defined()) {
      read.cached = some;
    } else {  // the groups have disjoint heads, and o = 0, lse = -inf elsewhere
      read.cached = {read.cached.o + some.o, at::maximum(read.cached.lse, some.lse)};
    }
  }
  read.cached = pieces.join(read.cached);
  int64_t kept = 0, scored = 0;
  for (size_t row = 0; row < call.position.size(); ++row) {
    kept = std::max(kept, rule_.unjudged(call.end(row)));
    scored = std::max(scored, rule_.scored(call.end(row)));
  }
  kept = std::min(kept, all.k.size(1));
  state.at("keys") = last_places(all.k, kept);
  state.at("values") = last_places(all.v, kept);
  state.at("scores") = last_places(scores, std::min(scored, scores.size(1)));
  return read;
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
  // Shifts by one token: a token sees the state after the previous one.
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
