// Counter-based random streams. A number is a pure function of (seed, stream name, counters), so resuming needs no
// state, and streams of different names are independent.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cortado {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): maps a 128-bit counter and a
// 64-bit key to 128 random bits. Gives equal bits on every machine.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A random stream, identified by a seed and a name. Streams of equal seed and name give equal numbers.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name);

  // Returns 64 uniform bits for the counter (a, b). The second counter serves two-dimensional uses such as (step, row).
  uint64_t bits(uint64_t a, uint64_t b = 0) const;
  // Returns a uniform integer in [0, bound), bound >= 1, with a bias below 2^-64 * bound.
  uint64_t below(uint64_t bound, uint64_t a, uint64_t b = 0) const;
  // Returns a uniform number in [0, 1) with 53 random bits.
  double uniform(uint64_t a, uint64_t b = 0) const { return static_cast<double>(bits(a, b) >> 11) * 0x1.0p-53; }
  // Returns a random order of 0 .. count-1 (Fisher-Yates), a pure function of (seed, name, a).
  std::vector<int64_t> permutation(int64_t count, uint64_t a) const;

 private:
  std::array<uint32_t, 2> key_;
};

}  // namespace cortado
