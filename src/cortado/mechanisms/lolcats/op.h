// lolcats: softmax over a window of recent keys and feature-map linear attention over all before it, in one
// denominator.
#pragma once

#include "cortado/base/words.h"
#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {

// Which keys the softmax part sees. The linear part sees all older ones.
enum class LolcatsLayout {
  kSliding,  // the last w, the query's own included
  kTerrace   // the whole previous block of w and the query's own block up to it; blocks lie at multiples of w
};
// How the two parts share a denominator; s the scores, c their maximum over the softmax part, g = σ(window_factor):
enum class LolcatsMixture {
  kLolcats,  // g e^{s-c} and φ_q·φ_k: c belongs to the definition, and gradients flow through it
  kGated,    // g e^s and (1 - g) φ_q·φ_k
  kPlain     // e^s and φ_q·φ_k
};
const Words<LolcatsLayout>& lolcats_layouts();    // "sliding", "terrace"
const Words<LolcatsMixture>& lolcats_mixtures();  // "lolcats", "gated", "plain"

struct LolcatsRule {
  int64_t window = 64;
  LolcatsLayout layout = LolcatsLayout::kSliding;
  LolcatsMixture mixture = LolcatsMixture::kLolcats;
  std::optional<double> scale = {};    // default K^-1/2
  std::optional<double> softcap = {};  // of the scores: c·tanh(s/c)
};

// The position of the first query whose linear part sees the key at each position.
Tensor lolcats_leaves_at(const Tensor& positions, const LolcatsRule& rule);
// The keys that are still in the softmax part's reach after `positions` tokens.
Tensor lolcats_kept(const Tensor& positions, const LolcatsRule& rule);

// The blocks that each sequence's queries lie in, of `lengths` queries from `start` on: int64 [N].
Tensor lolcats_blocks(const Tensor& start, const Tensor& lengths, const LolcatsRule& rule);

// A call on N packed sequences. Bounds are int64 [N+1], positions count from each sequence's start.
struct LolcatsCall {
  Tensor q, phi_q;                  // [1,Tq,h,K], [1,Tq,h,F]
  Tensor k, v;                      // [1,Tk,h,K], [1,Tk,h,V]: every key that the softmax part of some query sees
  Tensor query_bounds, key_bounds;  // of q and of k
  Tensor start, key_start;          // int64 [N]: the positions of the first query and of the first of the keys
  Tensor past_phi, past_v;          // [1,Tp,h,F], [1,Tp,h,V]: the keys that join the linear part
  Tensor past_bounds, past_time;    // of these; int64 [Tp]: lolcats_leaves_at of their positions
  OptionalTensor state;             // [N,h,F,V+1]: Σ φ_k ⊗ [v, 1] of those that had joined before
  // Terraces only: at least as many as there are blocks with a query, over all sequences; and as there are queries in
  // any of them (at most w).
  c10::SymInt blocks;
  int64_t queries_in_block = 0;
};
struct LolcatsResult {
  Tensor o;      // [1,Tq,H,V], of the accumulation type
  Tensor state;  // the last
};
LolcatsResult lolcats_packed(const LolcatsCall& call, const Tensor& window_factor, const LolcatsRule& rule);

// Softmax over some keys: its output, the log of its sum of exponentials, and its largest score.
struct SoftmaxPart {
  Tensor o, lse, row_max;  // [B,T,H,V], [B,T,H], [B,T,H]
};
// With the linear part: far [B,T,H,V+1], its numerator and denominator; window_factor [H]. No exponent is positive: in
// `gated` and `plain` the linear part's share of the whole is σ(log of its weight - log of the softmax part's).
Tensor join_linear(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture);

// Whole sequences from zero: q, k [B,T,H,K], v [B,T,H,V], phi_q, phi_k [B,T,H,F], window_factor [H] (before the
// sigmoid).
Tensor lolcats(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& phi_k,
               const Tensor& window_factor, const LolcatsRule& rule, const OptionalTensor& cu_seqlens = {});

// Dense sequences of T tokens from zero: only the queries from `first_query` on have a linear part, which only the
// first `keys` keys reach.
struct LolcatsFar {
  int64_t first_query = 0, keys = 0;
};
LolcatsFar lolcats_far(int64_t tokens, const LolcatsRule& rule);
// The same result as lolcats, faster, of features of these queries [B,T-first_query,h,F] and keys [B,keys,h,F] alone;
// float32 (float64 for float64).
Tensor lolcats_dense(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& phi_k,
                     const Tensor& window_factor, const LolcatsRule& rule);

// The definition: the T x T matrices of both parts; dense, differentiable by autograd, equal head counts.
Tensor lolcats_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& phi_k,
                         const Tensor& window_factor, const LolcatsRule& rule);

}  // namespace cortado
