// Which pairs a sparse cache holds at which chunk of a call: found for all of them together, by their scores alone.
#pragma once

#include <vector>

#include "cortado/mechanisms/macchiato/cache.h"

namespace cortado {

// A call's tokens: `tokens` of each row, which lie behind `before` places of the ring.
struct CacheCall {
  std::vector<int64_t> position;  // of each row's first token
  int64_t before = 0, tokens = 0;

  int64_t end(size_t row) const { return position[row] + tokens; }
  // The chunks of C that a row has tokens of: the first token of the first, and how many they are.
  int64_t first_chunk(size_t row, int64_t chunk) const { return position[row] / chunk * chunk; }
  int64_t chunks(size_t row, int64_t chunk) const { return (end(row) - 1) / chunk - position[row] / chunk + 1; }
  // Whether a row moves on to its next chunk.
  bool moves(int64_t chunk) const {
    for (size_t row = 0; row < position.size(); ++row) {
      if (end(row) / chunk > position[row] / chunk) return true;
    }
    return false;
  }
  // Of a row's token, also of one before the call.
  int64_t place(size_t row, int64_t token) const { return before + token - position[row]; }
};

// What competes in a call for the places of key heads: first the cache's pairs, `cached` places of them, whose keys are
// rotated for the call's first chunk; then the pairs that leave the window, from place `first` of the ring on, whose keys
// are not. k, v [B,n,h,·], scores [B,n,h,rule.scores_of_pair()], places [B,n,h].
struct CacheCandidates {
  Tensor k, v, scores, places;
  int64_t cached, first;
};

// What is in a cache at beginnings of chunks, each right-aligned: `counts` of E places. Where the pairs are among all
// numbers of the candidates, int64 [S,E,h], and the tokens by which their keys are to be turned back.
struct CacheSets {
  Tensor pairs, turns;
  std::vector<int64_t> counts;

  CacheSets(int64_t sets, int64_t places, int64_t heads);
  Tensor absent() const;  // bool [S,E,1]: no pair
};

// For the first λ = `most` of each key head. `chunks`: every chunk that the call has tokens of, row by row; `end`: of each
// row what the call leaves.
struct CacheSelection {
  CacheSets chunks, end;
};
CacheSelection select_pairs(const CacheCandidates& candidates, const CacheCall& call, const CacheRule& rule,
                            int64_t most);

}  // namespace cortado
