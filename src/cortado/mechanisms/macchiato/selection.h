// Finds which pairs a sparse cache holds in each chunk of a call, for all chunks at once, from the scores alone.
#pragma once

#include <vector>

#include "cortado/mechanisms/macchiato/cache.h"

namespace cortado {

// A call's tokens: `tokens` per row, after `before` entries of the ring.
struct CacheCall {
  std::vector<int64_t> position;  // of each row's first token
  int64_t before = 0, tokens = 0;

  int64_t end(size_t row) const { return position[row] + tokens; }
  // The chunks of C in which a row has tokens: the first token of the first chunk, and the number of chunks.
  int64_t first_chunk(size_t row, int64_t chunk) const { return position[row] / chunk * chunk; }
  int64_t chunks(size_t row, int64_t chunk) const { return (end(row) - 1) / chunk - position[row] / chunk + 1; }
  // Whether some row enters its next chunk.
  bool moves(int64_t chunk) const {
    for (size_t row = 0; row < position.size(); ++row) {
      if (end(row) / chunk > position[row] / chunk) return true;
    }
    return false;
  }
  // The index in ring and call of a row's token, which may precede the call.
  int64_t place(size_t row, int64_t token) const { return before + token - position[row]; }
};

// The candidates for a cache of some key heads: first the cache's pairs (`cached` entries), whose keys are rotated for
// the call's first chunk; then the pairs that leave the window, from index `first` of the ring on, whose keys are not
// rotated. k, v [B,n,h,·], scores [B,n,h,rule.scores_of_pair()], places [B,n,h].
struct CacheCandidates {
  Tensor k, v, scores, places;
  int64_t cached, first;
};

// The contents of a cache at the beginnings of chunks: S sets of E entries, right-aligned, `counts` of them in use.
// `pairs`, int64 [S,E,h], are indices among all numbers of the candidates; `turns` are the positions by which the keys
// are rotated back.
struct CacheSets {
  Tensor pairs, turns;
  std::vector<int64_t> counts;

  CacheSets(int64_t sets, int64_t places, int64_t heads);
  Tensor absent() const;  // bool [S,E,1]: entries without a pair
};

// The sets for key heads with λ = `most`. `chunks` has one set per chunk with tokens of the call, row by row; `end` has
// one per row, for the state after the call.
struct CacheSelection {
  CacheSets chunks, end;
};
CacheSelection select_pairs(const CacheCandidates& candidates, const CacheCall& call, const CacheRule& rule,
                            int64_t most);

}  // namespace cortado
