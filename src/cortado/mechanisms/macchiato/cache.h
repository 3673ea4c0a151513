// The sparse cache of macchiato: of the pairs that have left the window, those that the latents answer worst, kept as they
// are. One softmax is over the window's pairs, the cache's, and the latents.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "cortado/mechanisms/mixer.h"
#include "cortado/primitives/latte_scan/op.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// When pairs are judged, and how many stay.
//
// Pairs leave the window one by one, as its queries move on, and are judged `chunk` at a time, at absolute multiples of it:
// before token t of chunk n = ⌊t/C⌋ is read, the pairs up to nC - w, which no query of the chunk has in its window. Until
// then they wait, and every query sees them. So any split of a sequence gives the same outputs and states.
struct CacheRule {
  int64_t window = 0;              // w: keys of the window, with the query's own
  int64_t chunk = 64;              // C
  std::vector<int64_t> most = {};  // λ of each key head; of a head with 0 no pair waits either
  // The part of the λ pairs that are chosen by a score that fades with age; the others last.
  double fading = 0;
  // A pair has two scores, one for the pairs that last and one for those that fade, both logarithms of what they stand
  // for; else one.
  bool learned = false;
  // What lasts is chosen by the mean of the scores of the pair and of so many tokens on both sides of it, those that the
  // text has: a statement stays whole or goes. A text's first token stands alone: queries that want nothing need it.
  // Less than the window: all of them have been read when the pair leaves it.
  int64_t span = 0;
  // With rotary positions: a pair of the cache lies at most so many tokens before the chunk of the query that reads it.
  int64_t distance = 512;
  std::optional<Rotary> rotary = {};
  WindowAttentionOptions scores = {};  // scale and soft-cap

  // Of `tokens` tokens: pairs that have been judged, and those that have not.
  int64_t judged(int64_t tokens) const { return std::max<int64_t>(0, tokens / chunk * chunk - window + 1); }
  int64_t unjudged(int64_t tokens) const { return tokens - judged(tokens); }
  // Those whose own scores will be asked for.
  int64_t scored(int64_t tokens) const { return std::min(tokens, unjudged(tokens) + span); }
  // Those of λ pairs that are chosen by their score alone.
  int64_t lasting(int64_t most) const {
    return most - static_cast<int64_t>(std::floor(fading * static_cast<double>(most)));
  }
  // What a pair is worth is taken to fall as 1 / age, from `distance` on.
  double faded(double score, int64_t age) const {
    const auto young = static_cast<double>(std::max<int64_t>(1, distance));
    const double old = std::max(1.0, static_cast<double>(age) / young);
    return learned ? score - std::log(old) : score / old;
  }
  // The tokens that the pair lies before the chunk that begins with token `first`.
  int64_t before(int64_t pair, int64_t first) const { return std::min(first - pair, distance); }
  int64_t scores_of_pair() const { return learned ? 2 : 1; }
  bool empty() const { return most.empty(); }
};

// Softmax over some of the pairs that a query sees: o [B,T,H,V] and the logarithm of what it is divided by, [B,T,H]; -inf
// (and o = 0) where it sees none of them.
struct PairsRead {
  Tensor o, lse;
};

// What queries see exactly.
struct ExactRead {
  PairsRead window, waiting, cached;
};

// Tokens of a call: q, k rotated [B,T,H,K], [B,T,Hkv,K], plain_q, plain_k not rotated; v [B,T,Hkv,V], score
// [B,T,Hkv,rule.scores_of_pair()].
struct CacheInputs {
  Tensor q, plain_q, k, plain_k, v, score;
};

struct CacheCall;
struct CacheCandidates;
struct CacheSets;
class Pieces;

// The caches of a layer: one of [rows,E,heads,·] for all key heads with the same λ. A cached key is rotated by what it lies
// before the present chunk, and is turned on from chunk to chunk until that is rule.distance: so no angle grows with the
// text, and a key is rounded by distance / C turns at most.
class SparseCache {
 public:
  SparseCache(const CacheRule& rule, int64_t head_dim);

  const CacheRule& rule() const { return rule_; }
  // "keys" and "values", the pairs that are not judged yet; "scores", theirs and those of rule().span tokens before them;
  // and of each cache the pairs' own.
  void declare(StateLayout& layout, const std::vector<int64_t>& pair) const;
  // Dense tokens behind `state`, whose "position" is that of the first of them. Moves all but the position on.
  ExactRead read(const CacheInputs& in, SequenceState& state) const;

 private:
  struct Part {  // of key heads
    int64_t most;
    std::vector<int64_t> heads;
    std::string name(const char* what) const;
  };
  PairsRead read_waiting(const Tensor& q, const JoinedKeys& all, const CacheCall& call, const Pieces& pieces) const;
  // Of far_q in pieces; what the part leaves in the state. scores: by_span, undefined where no row moves to its next
  // chunk.
  PairsRead read_part(const Part& part, const Tensor& far_q, const CacheInputs& in, const JoinedKeys& all,
                      const Tensor& scores, const CacheCall& call, const Pieces& pieces, SequenceState& state) const;
  PairsRead read_set(const Part& part, const Tensor& far_q, const Tensor& k, const Tensor& v,
                     const std::vector<int64_t>& counts) const;
  CacheCandidates candidates(const Part& part, const CacheInputs& in, const JoinedKeys& all, const Tensor& scores,
                             const CacheCall& call, const SequenceState& state) const;
  // q of tokens behind these, rotated by what they lie behind the beginning of their chunk.
  Tensor from_chunk(const Tensor& plain_q, const std::vector<int64_t>& position) const;
  // x [B,T,h,K] turned by so many tokens, int64 [B,T] on the CPU, back or forth.
  Tensor turned(const Tensor& x, const Tensor& tokens, bool back) const;
  Tensor keys_of(const CacheCandidates& from, const CacheSets& sets) const;  // [S,E,h,K]
  // What the call's pairs compete by, [B,call.before + call.tokens,Hkv,·], of their scores and of some before them.
  Tensor by_span(const Tensor& scores, const CacheCall& call) const;

  CacheRule rule_;
  std::vector<Part> parts_;
  RotaryTable turns_;  // of the first tokens, float32
};

// One behind the other in time.
ExactRead join_in_time(const std::vector<ExactRead>& reads);

// How far the answer of the latents to a token's own query, before it is among them, lies from its value: the mean of
// |Σ_l p(l|t) S_l / α_l - v_t| over the query heads of a key head, [B,T,Hkv]. Without derivatives.
Tensor surprise(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const LatteState& start);
// The definition, dense, from zero.
Tensor surprise_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v);

// One softmax over the window's pairs, those beside it and the latents: what the first give, and what is left for the
// latents, [B,T,H,L]. query_logits [B,T,H,L+1], column 0 the window's.
struct Mixed {
  Tensor o, latents;
};
Mixed mix_pairs(const Tensor& query_logits, const ExactRead& exact);

// The definition, token by token and head by head: query_logits [B,T,H,L+1], key_logits [B,T,H,L], v [B,T,H,V]; q, k
// [B,T,H,K] rotated, plain_q, plain_k not; score [B,T,Hkv,rule.scores_of_pair()]. Dense, differentiable by autograd.
// `held` gets where pair s of the first sequence is when token t is read: 0 in the window or waiting, 1 in the cache, 2 in
// the latents alone, -1 not yet there.
struct CachedReference {
  Tensor query_logits, key_logits, v, q, k, plain_q, plain_k, score;
};
Tensor macchiato_cached_reference(const CachedReference& in, const CacheRule& rule, HeldPairs* held = nullptr);

}  // namespace cortado
