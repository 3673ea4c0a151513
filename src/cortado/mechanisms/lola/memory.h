// The three memories of LoLA: a window of recent pairs, a sparse cache, and the linear state.
#pragma once

#include <functional>
#include <vector>

#include "cortado/mechanisms/lola/rule.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

struct LolaPairs {
  Tensor k, v;    // [B,E,H,K], [B,E,H,V], oldest first
  Tensor scores;  // [B,E,H] where scored_by_queries, else undefined
};

struct LolaCache {
  LolaPairs pairs;
  Tensor sums;  // [B,H,F,V+1]: Σ φ_k ⊗ [v, 1]
};

using LolaFeatures = std::function<Tensor(const Tensor& k)>;  // φ_k of [B,T,H,K]: [B,T,H,F]

// Of the cached and the younger leaving pairs rule.cache stay (all, if they are no more); the others' φ(k) ⊗ [v, 1] are
// added to the sums. By scores against the sums before that (eq. 9).
LolaCache evict(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule, const LolaFeatures& phi_k);

// Of `rows` sequences, whose windows and caches may be filled differently. Hkv key heads, H query heads.
class LolaMemory {
 public:
  // Works on the tensors of `state`, which must live as long.
  LolaMemory(SequenceState& state, const LolaRule& rule, LolaFeatures phi_k);
  // Leaves "kept" and "cached" there.
  void finish();

  int64_t rows() const { return static_cast<int64_t>(position_.size()); }
  // Tokens that can be read before some row's chunk ends.
  int64_t room_in_chunk() const;

  // Reads n tokens, at most room_in_chunk(), or one by rule.token_window: q, phi_q [rows,n,H,..], k, v [rows,n,Hkv,..].
  // `in_place`: new pairs may be written behind the window where it lies.
  // Returns what the queries see: [rows,n,H,V].
  Tensor read(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& window_factor,
              bool in_place, bool by_tokens);

 private:
  // Rows that do the same: all of them (no numbers), or some.
  struct Group {
    Tensor rows;
    std::vector<int64_t> numbers;
    bool all = false;
    Tensor of(const Tensor& x) const { return all ? x : x.index_select(0, rows); }
    Tensor put(const Tensor& x, const Tensor& part) const { return all ? part : x.index_copy(0, rows, part); }
  };
  // Each row's `leaving` oldest pairs leave the window.
  void evict(const std::vector<int64_t>& leaving);
  void evict(const Group& group, int64_t leaving, int64_t kept, int64_t cached);
  void append(const Tensor& k, const Tensor& v, bool in_place);
  void score_window(const Tensor& q, const Tensor& phi_q);
  Tensor attend(const Tensor& q, const Tensor& phi_q, const Tensor& window_factor) const;

  SequenceState& state_;
  LolaRule rule_;
  LolaFeatures phi_k_;
  Tensor none_;
  Tensor &keys_, &values_;                         // [rows,P,Hkv,·] the window, oldest first, right-aligned
  Tensor &cache_keys_, &cache_values_;             // [rows,Q,H,·] the cache, oldest first, right-aligned
  Tensor& sums_;                                   // [rows,H,F,V+1]: Σ φ_k ⊗ [v, 1]
  Tensor &key_scores_, &cache_scores_;             // [rows,P,H], [rows,Q,H]: where scored_by_queries
  std::vector<int64_t> position_, kept_, cached_;  // tokens read, pairs in the window, pairs in the cache
};

}  // namespace cortado
