// The random numbers of one example, drawn one after the other.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cortado/base/random.h"

namespace cortado {

// Numbers are a pure function of (stream, index): they do not depend on what was drawn for other examples.
class Draws {
 public:
  Draws(const RandomStream& stream, int64_t index) : stream_(stream), index_(uint64_t(index)) {}

  uint64_t bits() { return stream_.bits(index_, next_++); }
  int64_t below(int64_t bound) { return int64_t(stream_.below(uint64_t(bound), index_, next_++)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }  // both bounds included
  double uniform() { return stream_.uniform(index_, next_++); }                       // in [0, 1)

  // `count` different numbers from 0 .. bound-1, in the order of drawing: the beginning of a random permutation.
  std::vector<int64_t> distinct(int64_t count, int64_t bound) {
    std::unordered_map<int64_t, int64_t> moved;  // the permutation's entries that differ from their index
    const auto at = [&](int64_t place) {
      const auto found = moved.find(place);
      return found == moved.end() ? place : found->second;
    };
    std::vector<int64_t> drawn;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t other = between(i, bound - 1);
      drawn.push_back(at(other));
      moved[other] = at(i);
    }
    return drawn;
  }

 private:
  const RandomStream& stream_;
  uint64_t index_, next_ = 0;
};

}  // namespace cortado
