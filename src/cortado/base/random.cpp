#include "cortado/base/random.h"

#include <numeric>
#include <utility>

#include "cortado/base/hash.h"

namespace cortado {
namespace {

// splitmix64's finaliser: spreads neighbouring seeds over all keys.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c[0], p1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return c;
}

RandomStream::RandomStream(uint64_t seed, std::string_view name) {
  const uint64_t key = mix(mix(seed) ^ hash_bytes(name));
  key_ = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

uint64_t RandomStream::bits(uint64_t a, uint64_t b) const {
  const auto out = philox({static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
                           static_cast<uint32_t>(b >> 32)},
                          key_);
  return static_cast<uint64_t>(out[1]) << 32 | out[0];
}

uint64_t RandomStream::below(uint64_t bound, uint64_t a, uint64_t b) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(bits(a, b)) * bound >> 64);
}

std::vector<int64_t> RandomStream::permutation(int64_t count, uint64_t a) const {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i, a, i)]);
  return order;
}

}  // namespace cortado
