// Pairs that leave LoLA's window: which stay in the sparse cache, and the linear state with the others.
#pragma once

#include <functional>

#include "cortado/mechanisms/lola/rule.h"

namespace cortado {

using at::Tensor;

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
// added to the sums. By scores against the sums before that (eq. 8).
LolaCache evict(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule, const LolaFeatures& phi_k);

}  // namespace cortado
