// The eviction kernel gives the same bits on any number of threads. Built without torch; `make tsan` runs it too.
#include "cortado/testing/threads.h"

#include "cortado/mechanisms/lola/kernel.h"

namespace cortado::lola_threads_test {
namespace {

using testing::Floats;
using testing::random_floats;
using testing::timed;

constexpr int64_t kBatch = 3, kHeads = 4, kCached = 45, kLeaving = 30, kFeatures = 18, kSize = 13;

struct Numbers {
  explicit Numbers(int64_t width, float low = -1)
      : width(width),
        cached(random_floats(kBatch * kCached * kHeads * width, low)),
        leaving(random_floats(kBatch * kLeaving * kHeads * width, low)) {}
  lola_kernel::Candidates candidates() {
    return {timed(cached, kCached, kHeads, width), timed(leaving, kLeaving, kHeads, width)};
  }
  int64_t width;
  Floats cached, leaving;
};

TEST(LolaThreads, Evict) {
  constexpr int64_t kSums = kBatch * kHeads * kFeatures * (kSize + 1);
  Numbers k(kSize), v(kSize), phi(kFeatures, 0);
  Floats sums = random_floats(kSums, 0), new_sums(kSums), keys(kBatch * kCached * kHeads * kSize), values(keys.size());
  const lola_kernel::Evict call{.batch = kBatch,
                                .heads = kHeads,
                                .cached = kCached,
                                .leaving = kLeaving,
                                .kept = kCached,
                                .features = kFeatures,
                                .keys = kSize,
                                .values = kSize,
                                .k = k.candidates(),
                                .v = v.candidates(),
                                .phi = phi.candidates(),
                                .sums = sums.data(),
                                .new_keys = timed(keys, kCached, kHeads, kSize),
                                .new_values = timed(values, kCached, kHeads, kSize),
                                .new_sums = new_sums.data()};
  testing::expect_same_on_any_number_of_threads([&](const kernels::Parallel& p) { lola_kernel::evict(call, p); },
                                                {&keys, &values, &new_sums});
}

}  // namespace
}  // namespace cortado::lola_threads_test
