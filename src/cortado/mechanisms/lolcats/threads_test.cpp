// The kernels of the feature map and of the join give the same bits on any number of threads. Built without torch;
// `make tsan` runs it too.
#include "cortado/testing/threads.h"

#include "cortado/mechanisms/lolcats/kernel.h"

namespace cortado::lolcats_threads_test {
namespace {

using kernels::Parallel;
using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;
using testing::timed;

constexpr int64_t kBatch = 2, kTokens = 150, kHeads = 3, kSize = 21, kWidth = 19;
constexpr int64_t kRows = kBatch * kTokens * kHeads;

TEST(LolcatsThreads, Features) {
  Floats y = random_floats(kRows * kWidth), phi(kRows * 2 * kWidth), dphi = random_floats(kRows * 2 * kWidth);
  Floats dy(kRows * kWidth);
  const lolcats_kernel::Features call{.rows = kRows,
                                      .width = kWidth,
                                      .least = 1e-12f,
                                      .y = y.data(),
                                      .phi = phi.data(),
                                      .dphi = dphi.data(),
                                      .dy = dy.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { lolcats_kernel::features(call, p); }, {&phi});
  expect_same_on_any_number_of_threads([&](const Parallel& p) { lolcats_kernel::features_backward(call, p); }, {&dy});
}

// Few tokens, which are processed one by one, and tiles of them.
class LolcatsThreadsInference : public ::testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(Tokens, LolcatsThreadsInference, ::testing::Values(3, kTokens));

TEST_P(LolcatsThreadsInference, MappedFeatures) {
  const int64_t tokens = GetParam(), rows = kBatch * tokens * kHeads;
  Floats x = random_floats(rows * kSize), weight = random_floats(kHeads * kSize * kWidth), phi(rows * 2 * kWidth);
  const lolcats_kernel::MappedFeatures call{.batch = kBatch,
                                            .tokens = tokens,
                                            .heads = kHeads,
                                            .inputs = kSize,
                                            .width = kWidth,
                                            .least = 1e-12f,
                                            .x = timed(x, tokens, kHeads, kSize),
                                            .weight = weight.data(),
                                            .phi = timed(phi, tokens, kHeads, 2 * kWidth)};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { lolcats_kernel::mapped_features(call, p); }, {&phi});
}

struct JoinNumbers {
  explicit JoinNumbers(int64_t tokens) : tokens(tokens) {}
  int64_t tokens, rows = kBatch * tokens * kHeads;
  Floats near = random_floats(rows * kSize), far = random_floats(rows * (kSize + 1), 0, 1), lse = random_floats(rows);
  Floats row_max = random_floats(rows), factor = random_floats(kHeads), out = Floats(rows * kSize);

  lolcats_kernel::Join call() {
    return {.batch = kBatch,
            .tokens = tokens,
            .heads = kHeads,
            .values = kSize,
            .mixture = lolcats_kernel::Mixture::kGated,
            .near = timed(near, tokens, kHeads, kSize),
            .lse = timed(lse, tokens, kHeads, 1),
            .row_max = timed(row_max, tokens, kHeads, 1),
            .far = timed(far, tokens, kHeads, kSize + 1),
            .out = timed(out, tokens, kHeads, kSize),
            .factor = factor.data()};
  }
};

TEST(LolcatsThreads, Join) {
  JoinNumbers numbers(kTokens);
  Floats dout = random_floats(kRows * kSize), dnear(kRows * kSize), dfar(kRows * (kSize + 1)), dlse(kRows);
  Floats dfactor(kHeads), drow_max(kRows);
  lolcats_kernel::Join call = numbers.call();
  expect_same_on_any_number_of_threads([&](const Parallel& p) { lolcats_kernel::join(call, p); }, {&numbers.out});
  Floats parts(static_cast<size_t>(lolcats_kernel::parts_size(call)));
  call.dout = timed(dout, kTokens, kHeads, kSize);
  call.dnear = timed(dnear, kTokens, kHeads, kSize);
  call.dlse = timed(dlse, kTokens, kHeads, 1);
  call.drow_max = timed(drow_max, kTokens, kHeads, 1);
  call.dfar = timed(dfar, kTokens, kHeads, kSize + 1);
  call.dfactor = dfactor.data();
  call.parts = parts.data();
  expect_same_on_any_number_of_threads([&](const Parallel& p) { lolcats_kernel::join_backward(call, p); },
                                       {&dnear, &dlse, &dfar, &dfactor});
}

TEST_P(LolcatsThreadsInference, JoinSums) {
  JoinNumbers numbers(GetParam());
  Floats phi = random_floats(numbers.rows * kWidth, 0, 1);
  Floats sums = random_floats(kBatch * kHeads * kWidth * (kSize + 1), 0, 1);
  lolcats_kernel::JoinSums call{.join = numbers.call(),
                                .features = kWidth,
                                .phi = timed(phi, numbers.tokens, kHeads, kWidth),
                                .sums = sums.data()};
  call.join.far = {};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { lolcats_kernel::join_sums(call, p); }, {&numbers.out});
}

}  // namespace
}  // namespace cortado::lolcats_threads_test
