// Ranks key-value pairs that compete by score for the entries of a cache.
#pragma once

#include <utility>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

// The relative difference below which two scores count as equal; equality is transitive, and among equals the older
// pair stays. Keys and values are rounded differently depending on how a sequence was split, and repeated tokens, which
// have equal scores, must not be ranked by that. Relative to the score, or to the longest value vector if the score is
// a distance from one.
inline double score_tie(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 1e-5; }

// Ranks candidates: scores [B,E,H], oldest first -> their indices [B,E,H], from the highest score to the lowest. Scores
// within `near` [B|1,1,H|1] of each other, or within `share` of their size, are equal, and the older comes first.
Tensor in_order(const Tensor& scores, const Tensor& near, double share);

// The definition of in_order() for one head: sorts (score, index) from the highest score to the lowest.
using RankedPairs = std::vector<std::pair<double, int64_t>>;
void rank_by_definition(RankedPairs& pairs, double near, double share);

// Entries first..first+count-1 of such an order, sorted again from the oldest pair to the newest.
Tensor by_age(const Tensor& order, int64_t first, int64_t count);

// Gathers x [B,E,H,...] at `places` [B,E',H]: [B,E',H,...]. Copies whole pairs instead of single numbers, which is
// faster.
Tensor gather_pairs(const Tensor& x, const Tensor& places);

// The last `places` entries of x [B,P,...].
inline Tensor last_places(const Tensor& x, int64_t places) { return x.narrow(1, x.size(1) - places, places); }

// Copies an int64 tensor to the host.
std::vector<int64_t> numbers_of(const Tensor& x);

}  // namespace cortado
