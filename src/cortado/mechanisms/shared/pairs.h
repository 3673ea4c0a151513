// Key-value pairs that compete for the places of a cache by a score.
#pragma once

#include <utility>
#include <vector>

#include "cortado/primitives/types.h"

namespace cortado {

// Scores that lie closer together than rounding moves them are equal, and so are those with some between them that do:
// of equals the older stays. How a sequence was split rounds its keys and values differently, and repeated tokens, which
// score the same, must not be told apart by that. Relative to the score, or to the longest value vector where it is the
// distance from one.
inline double score_tie(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 1e-5; }

// scores [B,E,H] of candidates from the oldest to the newest -> their places [B,E,H] from the highest score to the lowest,
// the older first of those that lie within `near` [B|1,1,H|1] of each other, or within that share of themselves.
Tensor in_order(const Tensor& scores, const Tensor& near, double share);

// The same order by the definition, one head's: (score, place) from the highest score to the lowest.
using RankedPairs = std::vector<std::pair<double, int64_t>>;
void rank_by_definition(RankedPairs& pairs, double near, double share);

// The `count` places from `first` on of such an order, the oldest pair first again.
Tensor by_age(const Tensor& order, int64_t first, int64_t count);

// x [B,E,H,...] at `places` [B,E',H]: [B,E',H,...]. Whole pairs are copied, not their numbers one by one.
Tensor gather_pairs(const Tensor& x, const Tensor& places);

// The last so many places of x [B,P,...].
inline Tensor last_places(const Tensor& x, int64_t places) { return x.narrow(1, x.size(1) - places, places); }

// Of a counter, int64 [rows].
std::vector<int64_t> numbers_of(const Tensor& x);

}  // namespace cortado
