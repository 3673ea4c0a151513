// lola: what stays of the past, and where.
#pragma once

#include <algorithm>

#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/mechanisms/mixer.h"
#include "cortado/mechanisms/shared/pairs.h"

namespace cortado {

// By what a pair's place in the sparse cache is decided: the pairs with the highest score stay (LoLA §3 and Table 4).
enum class LolaScore {
  kError,        // ‖φ(k)ᵀH / φ(k)ᵀs - v‖: what the linear state would answer wrongly (eq. 9)
  kLeaveOneOut,  // the same with all other candidates in the state; what rounding moves (score_tie) is nothing
  kSquared,      // Σ_t (e^{s_t} - φ(q_t)·φ(k))² over the queries that saw the pair in the window (eq. 19)
  kAbsolute,     // the same with |.|
  kRatio,        // Σ_t φ(q_t)·φ(k) / e^{s_t} (eq. 20)
  kShare,        // the same of what each is of its sum over the pairs in the query's window
  kRecent        // the newest pairs: a longer window
};
inline const Words<LolaScore>& lola_scores() {
  static const Words<LolaScore> words = {{"error", LolaScore::kError},     {"leave_one_out", LolaScore::kLeaveOneOut},
                                         {"squared", LolaScore::kSquared}, {"absolute", LolaScore::kAbsolute},
                                         {"ratio", LolaScore::kRatio},     {"share", LolaScore::kShare},
                                         {"recent", LolaScore::kRecent}};
  return words;
}

// Whether a pair's score is what the linear state answers wrongly, found when the pair is judged.
inline bool scored_by_state(LolaScore score) { return score == LolaScore::kError || score == LolaScore::kLeaveOneOut; }
// Whether it is made while the pair is in the window, by the queries there, and is kept with it.
inline bool scored_by_queries(LolaScore score) { return !scored_by_state(score) && score != LolaScore::kRecent; }

struct LolaRule {
  int64_t chunk = 64;  // C: pairs leave the window C at a time
  int64_t cache = 64;  // λ: pairs in the sparse cache, per query head
  LolcatsMixture mixture = LolcatsMixture::kGated;
  LolaScore score = LolaScore::kError;
  std::optional<double> scale = {};    // default K^-1/2
  std::optional<double> softcap = {};  // of the scores s
  // Single tokens are read with a window of this many pairs, which leave one at a time (the paper's decoding). None:
  // by chunks, as longer calls always are, so that single tokens give what a long call gives.
  std::optional<int64_t> token_window = {};
};

// After `tokens` tokens read by chunks, with token_window one by one: pairs in the window, and in the cache.
inline int64_t lola_kept(int64_t tokens, const LolaRule& rule) {
  if (rule.token_window) return std::min(tokens, *rule.token_window);
  const int64_t first = (std::max<int64_t>(tokens - 1, 0) / rule.chunk - 1) * rule.chunk;
  return tokens - std::max<int64_t>(first, 0);
}
inline int64_t lola_cached(int64_t tokens, const LolaRule& rule) {
  return std::min(rule.cache, tokens - lola_kept(tokens, rule));
}

// The definition, token by token and head by head: q, k [B,T,H,K], v [B,T,H,V], phi_q, phi_k [B,T,H,F], window_factor
// [H]. By chunks, or, with rule.token_window, one pair at a time from `chunked` tokens on. Dense, differentiable by
// autograd. `held` gets where pair s of the first sequence is when token t is read: 0 in the window, 1 in the cache, 2 in
// the linear state, -1 not yet there; and its score where it was one of too many for the cache.
Tensor lola_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& phi_k,
                      const Tensor& window_factor, const LolaRule& rule, int64_t chunked = 0,
                      HeldPairs* held = nullptr);

}  // namespace cortado
