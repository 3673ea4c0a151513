// lola: the rule of which pairs stay, and where.
#pragma once

#include <algorithm>

#include "cortado/mechanisms/lolcats/op.h"
#include "cortado/mechanisms/mixer.h"
#include "cortado/mechanisms/shared/pairs.h"

namespace cortado {

// The score that ranks pairs for the sparse cache; the highest stay (LoLA §3 and Table 4).
enum class LolaScore {
  kError,        // ‖φ(k)ᵀH / φ(k)ᵀs - v‖, the error of the linear state's answer (eq. 9)
  kLeaveOneOut,  // kError with all other candidates in the state; weights below rounding (score_tie) count as 0
  kSquared,      // Σ_t (e^{s_t} - φ(q_t)·φ(k))² over the queries that saw the pair in the window (eq. 19)
  kAbsolute,     // kSquared with the absolute value instead of the square
  kRatio,        // Σ_t φ(q_t)·φ(k) / e^{s_t} (eq. 20)
  kShare,        // kRatio of normalised weights: each divided by its sum over the pairs in the query's window
  kRecent        // the newest pairs, which makes the cache a longer window
};
inline const Words<LolaScore>& lola_scores() {
  static const Words<LolaScore> words = {{"error", LolaScore::kError},     {"leave_one_out", LolaScore::kLeaveOneOut},
                                         {"squared", LolaScore::kSquared}, {"absolute", LolaScore::kAbsolute},
                                         {"ratio", LolaScore::kRatio},     {"share", LolaScore::kShare},
                                         {"recent", LolaScore::kRecent}};
  return words;
}

// Whether a pair's score is the error of the linear state's answer, computed when the pair is judged.
inline bool scored_by_state(LolaScore score) { return score == LolaScore::kError || score == LolaScore::kLeaveOneOut; }
// Whether a pair's score is accumulated by the queries while the pair is in the window, and kept with it.
inline bool scored_by_queries(LolaScore score) { return !scored_by_state(score) && score != LolaScore::kRecent; }

struct LolaRule {
  int64_t chunk = 64;  // C: pairs leave the window C at a time
  int64_t cache = 64;  // λ: pairs in the sparse cache, per query head
  LolcatsMixture mixture = LolcatsMixture::kGated;
  LolaScore score = LolaScore::kError;
  std::optional<double> scale = {};    // default K^-1/2
  std::optional<double> softcap = {};  // on the scores s
  // Single tokens are read with a window of this many pairs, which leave one at a time (the paper's decoding). nullopt:
  // pairs leave by chunks for single tokens too, so single tokens give what one long call gives.
  std::optional<int64_t> token_window = {};
};

// Pairs in the window (lola_kept) and in the cache (lola_cached) after `tokens` tokens, read by chunks, or with
// token_window one by one.
inline int64_t lola_kept(int64_t tokens, const LolaRule& rule) {
  if (rule.token_window) return std::min(tokens, *rule.token_window);
  const int64_t first = (std::max<int64_t>(tokens - 1, 0) / rule.chunk - 1) * rule.chunk;
  return tokens - std::max<int64_t>(first, 0);
}
inline int64_t lola_cached(int64_t tokens, const LolaRule& rule) {
  return std::min(rule.cache, tokens - lola_kept(tokens, rule));
}

// The definition, token by token and head by head, for equal head counts. Pairs leave by chunks; with rule.token_window they leave one at a time from token `chunked` on. Dense,
// differentiable by autograd. `held` receives, for the first sequence, which memory holds pair s when token t reads (0
// window, 1 cache, 2 linear state, -1 none yet) and the pair's score if it was ranked then.
Tensor lola_reference(const LolcatsInputs& in, const LolaRule& rule, int64_t chunked = 0, HeldPairs* held = nullptr);

}  // namespace cortado
