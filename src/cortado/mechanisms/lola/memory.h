// LoLA's three memories: a window of recent pairs, a sparse cache, and the linear state.
#pragma once

#include <functional>
#include <vector>

#include "cortado/mechanisms/lola/rule.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

struct LolaPairs {
  Tensor k, v;    // [B,E,H,K], [B,E,H,V], oldest first
  Tensor scores;  // [B,E,H] if scored_by_queries, otherwise undefined
};

struct LolaCache {
  LolaPairs pairs;
  Tensor sums;  // [B,H,F,V+1]: Σ φ_k ⊗ [v, 1]
};

using LolaFeatures = std::function<Tensor(const Tensor& k)>;  // φ_k: maps keys [B,T,H,K] to [B,T,H,F]

// Selects among the cached pairs and the younger `leaving` pairs. The rule.cache highest scores stay (all, if there are
// no more); φ(k) ⊗ [v, 1] of the others is added to the sums. Scores use the sums from before the addition (eq. 9).
LolaCache evict(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule, const LolaFeatures& phi_k);

// The memories of `rows` sequences, whose windows and caches may be filled differently. Hkv key heads, H query heads.
class LolaMemory {
 public:
  // Works on the tensors of `state`, which must outlive this object.
  LolaMemory(SequenceState& state, const LolaRule& rule, LolaFeatures phi_k);
  // Writes "kept" and "cached" back to the state.
  void finish();

  int64_t rows() const { return static_cast<int64_t>(position_.size()); }
  // The number of tokens that can be read before some row's chunk ends.
  int64_t room_in_chunk() const;

  // Reads n tokens, at most room_in_chunk(), or with `by_tokens` one token as rule.token_window says. q, phi_q
  // [rows,n,H,·], k, v [rows,n,Hkv,·]. `in_place`: new pairs may be written after the window in its memory. Returns the
  // output before the projection, [rows,n,H,V].
  Tensor read(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& window_factor,
              bool in_place, bool by_tokens);

 private:
  // Rows with equal counts, which are processed together; `all`: every row.
  struct Group {
    Tensor rows;
    std::vector<int64_t> numbers;
    bool all = false;
    Tensor of(const Tensor& x) const { return all ? x : x.index_select(0, rows); }
    Tensor put(const Tensor& x, const Tensor& part) const { return all ? part : x.index_copy(0, rows, part); }
  };
  // Removes each row's `leaving` oldest pairs from the window.
  void evict(const std::vector<int64_t>& leaving);
  void evict(const Group& group, int64_t leaving, int64_t kept, int64_t cached);
  void append(const Tensor& k, const Tensor& v, bool in_place);
  void score_window(const Tensor& q, const Tensor& phi_q);
  Tensor attend(const Tensor& q, const Tensor& phi_q, const Tensor& window_factor) const;

  SequenceState& state_;
  LolaRule rule_;
  LolaFeatures phi_k_;
  Tensor none_;
  Tensor &keys_, &values_;                         // [rows,P,Hkv,·]: the window, oldest first, right-aligned
  Tensor &cache_keys_, &cache_values_;             // [rows,Q,H,·]: the cache, oldest first, right-aligned
  Tensor& sums_;                                   // [rows,H,F,V+1]: Σ φ_k ⊗ [v, 1]
  Tensor &key_scores_, &cache_scores_;             // [rows,P,H], [rows,Q,H]; used if scored_by_queries
  std::vector<int64_t> position_, kept_, cached_;  // per row: tokens read, pairs in the window, pairs in the cache
};

}  // namespace cortado
