// lolcats: softmax over a window of recent keys and feature-map linear attention over all earlier keys, under one
// denominator.
#pragma once

#include "cortado/base/words.h"
#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {

// The keys that the softmax part sees. The linear part sees all older ones.
enum class LolcatsLayout {
  kSliding,  // the last w keys, the query's own included
  kTerrace   // the previous block of w and the query's block up to the query; blocks begin at multiples of w
};
// How the two parts share a denominator. s are the scores, c is their maximum over the softmax part, g =
// σ(window_factor).
enum class LolcatsMixture {
  kLolcats,  // g e^{s-c} and φ_q·φ_k; c is part of the definition and has a gradient
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
  std::optional<double> softcap = {};  // c·tanh(s/c) on the scores
};

// For each key position: the position of the first query whose linear part sees that key.
Tensor lolcats_leaves_at(const Tensor& positions, const LolcatsRule& rule);
// The number of keys still in the softmax part's reach after `positions` tokens.
Tensor lolcats_kept(const Tensor& positions, const LolcatsRule& rule);

// The number of blocks with queries per sequence, for `lengths` queries from position `start` on: int64 [N].
Tensor lolcats_blocks(const Tensor& start, const Tensor& lengths, const LolcatsRule& rule);

// A call on N packed sequences. Bounds are int64 [N+1]; positions count from the start of each sequence.
struct LolcatsCall {
  Tensor q, phi_q;                  // [1,Tq,h,K], [1,Tq,h,F]
  Tensor k, v;                      // [1,Tk,h,K], [1,Tk,h,V]: all keys that the softmax part of some query sees
  Tensor query_bounds, key_bounds;  // of q, and of k and v
  Tensor start, key_start;          // int64 [N]: positions of the first query and of the first key
  Tensor past_phi, past_v;          // [1,Tp,h,F], [1,Tp,h,V]: keys that join the linear part during the call
  Tensor past_bounds, past_time;    // bounds of past_phi; int64 [Tp]: lolcats_leaves_at() of these keys
  OptionalTensor state;             // [N,h,F,V+1]: Σ φ_k ⊗ [v, 1] of the keys that joined earlier
  // Terraces only: upper bounds for the number of blocks with a query, over all sequences, and for the queries per
  // block (at most w).
  c10::SymInt blocks;
  int64_t queries_in_block = 0;
};
struct LolcatsResult {
  Tensor o;      // [1,Tq,H,V], in the accumulation type
  Tensor state;  // after the call
};
LolcatsResult lolcats_packed(const LolcatsCall& call, const Tensor& window_factor, const LolcatsRule& rule);

// The softmax part's output, the log of its sum of exponentials, and its largest score.
struct SoftmaxPart {
  Tensor o, lse, row_max;  // [B,T,H,V], [B,T,H], [B,T,H]
};
// Joins the softmax part with the linear part. far [B,T,H,V+1] is the linear part's numerator and denominator;
// window_factor [H]. No exponent is positive: in `gated` and `plain` the linear part's share is σ(log of its weight -
// log of the softmax part's weight).
Tensor join_linear(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture);

struct LolcatsInputs {
  Tensor q, k, v, phi_q, phi_k;  // q, k [B,T,H,K], v [B,T,H,V], phi_q, phi_k [B,T,H,F]
  Tensor window_factor;          // [H], before the sigmoid
  OptionalTensor cu_seqlens = {};
};
// Whole sequences from the zero state. Returns [B,T,H,V] in v's type. Throws InputError for shapes that do not fit.
Tensor lolcats(const LolcatsInputs& in, const LolcatsRule& rule);

// For dense sequences of T tokens from the zero state: only queries from `first_query` on have a linear part, and only
// the first `keys` keys enter it.
struct LolcatsFar {
  int64_t first_query = 0, keys = 0;
};
LolcatsFar lolcats_far(int64_t tokens, const LolcatsRule& rule);
// Equals lolcats() and is faster. Takes features of those queries [B,T-first_query,h,F] and keys [B,keys,h,F] only.
// Returns float32 (float64 for float64).
Tensor lolcats_dense(const LolcatsInputs& in, const LolcatsRule& rule);

// The definition: T x T matrices of both parts; dense, equal head counts, differentiable by autograd.
Tensor lolcats_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& phi_k,
                         const Tensor& window_factor, const LolcatsRule& rule);

}  // namespace cortado
