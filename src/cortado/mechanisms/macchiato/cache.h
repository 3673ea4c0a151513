// The sparse cache of macchiato: keeps, among the pairs that left the window, those that the latents answer worst,
// unchanged. One softmax weighs the window's pairs, the cache's pairs and the latents.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "cortado/mechanisms/mixer.h"
#include "cortado/primitives/latte_scan/op.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// Says when pairs are judged, and how many stay.
//
// Pairs leave the window one by one as its queries advance. They are judged once per chunk of C tokens; chunks begin at
// multiples of C. Before token t of chunk n = ⌊t/C⌋ is read, the pairs up to nC - w are judged, which no query of the
// chunk has in its window. Until then a pair waits, and every query sees it. So any split of a sequence gives the same
// outputs and states.
struct CacheRule {
  int64_t window = 0;              // w: keys of the window, the query's own included
  int64_t chunk = 64;              // C
  std::vector<int64_t> most = {};  // λ per key head; where it is 0, no pair waits either
  // The share of the λ pairs that are chosen by a score that fades with age. The other pairs last.
  double fading = 0;
  // Whether scores are learned. Then a pair has two, one for pairs that last and one for pairs that fade, both logs of
  // a pair's worth. Otherwise it has one, the surprise.
  bool learned = false;
  // Lasting pairs are chosen by the mean score over the pair and `span` tokens on both sides, as far as the text has
  // them, so that a statement stays or goes as a whole. The text's first token is scored alone, because queries that
  // look for nothing attend to it. Less than the window, so that all those tokens have been read when the pair leaves
  // it.
  int64_t span = 0;
  // With rotary positions: the largest distance, in tokens, from a cached pair to the chunk of the query that reads it.
  int64_t distance = 512;
  std::optional<Rotary> rotary = {};
  WindowAttentionOptions scores = {};  // scale and soft-cap of the scores

  // After `tokens` tokens: the number of pairs that have been judged, and of those that have not.
  int64_t judged(int64_t tokens) const { return std::max<int64_t>(0, tokens / chunk * chunk - window + 1); }
  int64_t unjudged(int64_t tokens) const { return tokens - judged(tokens); }
  // The number of last pairs whose own scores are still needed.
  int64_t scored(int64_t tokens) const { return std::min(tokens, unjudged(tokens) + span); }
  // The number among λ = `most` pairs that are chosen by the lasting score.
  int64_t lasting(int64_t most) const {
    return most - static_cast<int64_t>(std::floor(fading * static_cast<double>(most)));
  }
  // A pair's score after fading: its worth falls as 1 / age for ages above `distance`.
  double faded(double score, int64_t age) const {
    const auto young = static_cast<double>(std::max<int64_t>(1, distance));
    const double old = std::max(1.0, static_cast<double>(age) / young);
    return learned ? score - std::log(old) : score / old;
  }
  // The distance, in tokens, from the pair to the chunk whose first token is `first`, at most `distance`.
  int64_t before(int64_t pair, int64_t first) const { return std::min(first - pair, distance); }
  int64_t scores_of_pair() const { return learned ? 2 : 1; }
  bool empty() const { return most.empty(); }
};

// Softmax over a subset of the pairs that a query sees: o [B,T,H,V] and lse [B,T,H], the log of its denominator. o = 0
// and lse = -inf where the query sees none of them.
struct PairsRead {
  Tensor o, lse;
};

// Reads of all pairs that queries see exactly.
struct ExactRead {
  PairsRead window, waiting, cached;
};

// Operands of a call. q [B,T,H,K] and k [B,T,Hkv,K] are rotated, plain_q and plain_k are not; v [B,T,Hkv,V]; score
// [B,T,Hkv,rule.scores_of_pair()].
struct CacheInputs {
  Tensor q, plain_q, k, plain_k, v, score;
};

// Pairs of a call that may enter the cache: window and ring (`all`), their unrotated keys, and their scores by
// by_span(), undefined if no row enters its next chunk.
struct CacheOffers {
  const JoinedKeys& all;
  const Tensor &plain_k, &scores;
};

struct CacheCall;
struct CacheCandidates;
struct CacheSets;
class Pieces;

// The caches of a layer, one [rows,E,heads,·] for all key heads with equal λ. A cached key is rotated by its distance
// to the current chunk, and rotated further from chunk to chunk until that is rule.distance. So no angle grows with the
// text, and a key is rounded in at most distance / C rotations.
class SparseCache {
 public:
  SparseCache(const CacheRule& rule, int64_t head_dim);

  const CacheRule& rule() const { return rule_; }
  // Adds to the state: "keys" and "values" of the pairs that are not judged yet; "scores", theirs and those of
  // rule().span tokens before them; and each cache's keys, values, scores and places.
  void declare(StateLayout& layout, const std::vector<int64_t>& pair) const;
  // Reads dense tokens after `state`, whose "position" is that of the first of them. Updates everything in the state
  // except the position.
  ExactRead read(const CacheInputs& in, SequenceState& state) const;

 private:
  struct HeadGroup {  // key heads with equal λ
    int64_t most;
    std::vector<int64_t> heads;
    std::string name(const char* what) const;
  };
  PairsRead read_waiting(const Tensor& q, const JoinedKeys& all, const CacheCall& call, const Pieces& pieces) const;
  // Reads one group's cache with far_q, which is split into pieces, and updates the group's tensors in the state.
  PairsRead read_group(const HeadGroup& group, const Tensor& far_q, const CacheOffers& offers, const CacheCall& call,
                       const Pieces& pieces, SequenceState& state) const;
  PairsRead read_set(const HeadGroup& group, const Tensor& far_q, const Tensor& k, const Tensor& v,
                     const std::vector<int64_t>& counts) const;
  CacheCandidates candidates(const HeadGroup& group, const CacheOffers& offers, const CacheCall& call,
                             const SequenceState& state) const;
  // Rotates the q of tokens from `position` on by their distance to the first token of their chunk.
  Tensor from_chunk(const Tensor& plain_q, const std::vector<int64_t>& position) const;
  // Rotates x [B,T,h,K] by `tokens` positions (int64 [B,T] on the CPU), forwards or back.
  Tensor turned(const Tensor& x, const Tensor& tokens, bool back) const;
  Tensor keys_of(const CacheCandidates& from, const CacheSets& sets) const;  // [S,E,h,K]
  // The scores by which the call's pairs compete, [B,call.before + call.tokens,Hkv,·], from their own scores and some
  // before.
  Tensor by_span(const Tensor& scores, const CacheCall& call) const;

  CacheRule rule_;
  std::vector<HeadGroup> groups_;
  RotaryTable turns_;  // angles of the first positions, float32
};

// Concatenates reads in time.
ExactRead join_in_time(const std::vector<ExactRead>& reads);

// How wrong the latents' answer to a token's own query is before the token joins them: |Σ_l p(l|t) S_l / α_l - v_t|,
// the mean over the query heads of a key head, [B,T,Hkv]. Has no gradient.
Tensor surprise(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, const LatteState& start);
// The definition, dense, from the zero state.
Tensor surprise_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v);

// One softmax over the window's pairs, the waiting and cached pairs, and the latents. Returns o, the contribution of
// the pairs, and the weights left for the latents [B,T,H,L]. query_logits is [B,T,H,L+1], column 0 for the window.
struct Mixed {
  Tensor o, latents;
};
Mixed mix_pairs(const Tensor& query_logits, const ExactRead& exact);

// The definition, token by token and head by head: query_logits [B,T,H,L+1], key_logits [B,T,H,L], v [B,T,H,V]; q, k
// [B,T,H,K] rotated, plain_q, plain_k not; score [B,T,Hkv,rule.scores_of_pair()]. Dense, differentiable by autograd.
// `held` receives, for the first sequence, which memory holds pair s when token t reads: 0 window or waiting, 1 cache,
// 2 the latents only, -1 none yet.
struct CachedReference {
  Tensor query_logits, key_logits, v, q, k, plain_q, plain_k, score;
};
Tensor macchiato_cached_reference(const CachedReference& in, const CacheRule& rule, HeldPairs* held = nullptr);

}  // namespace cortado
