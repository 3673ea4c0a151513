// The loops that measure the machine share nothing but their inputs. Without torch; `make tsan` also runs this test.
#include "cortado/testing/threads.h"

#include "cortado/bench/kernel.h"

namespace cortado::bench_threads_test {
namespace {

using kernels::Parallel;
using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;

TEST(BenchThreads, TriadWritesEveryEntry) {
  constexpr int64_t kSize = 128 * 4 * 3;
  const Floats a = random_floats(kSize + 16), b = random_floats(kSize + 16);
  Floats out(kSize + 16);
  const auto aligned = [](auto* x) { return x + (64 - reinterpret_cast<uintptr_t>(x) % 64) % 64 / sizeof(float); };
  for (const bool past_caches : {false, true}) {
    Floats result(kSize);
    expect_same_on_any_number_of_threads(
        [&](const Parallel& p) {
          bench::triad_loop(p, aligned(out.data()), aligned(a.data()), aligned(b.data()), kSize, past_caches);
          std::copy_n(aligned(out.data()), kSize, result.data());
        },
        {&result});
    for (int64_t i = 0; i < kSize; ++i) {  // with fused multiply-add or with rounding in between
      ASSERT_NEAR(result[i], aligned(a.data())[i] + 3 * aligned(b.data())[i], 1e-5);
    }
  }
}

TEST(BenchThreads, TheOthersRun) {
  const Floats from(128 * 4 * 3 + 16);
  const float* aligned = from.data() + (64 - reinterpret_cast<uintptr_t>(from.data()) % 64) % 64 / sizeof(float);
  for (const auto& parallel : {testing::std_threads<1>(), testing::std_threads<4>()}) {
    bench::fma_loop(parallel, 2);
    bench::exp_loop(parallel, 2);
    bench::read_loop(parallel, aligned, 128 * 4 * 3);
  }
}

}  // namespace
}  // namespace cortado::bench_threads_test
