// The kernel gives the same bits on any number of threads. Built without torch; `make tsan` runs it too.
#include "cortado/testing/threads.h"

#include "cortado/mechanisms/rwkv/kernel.h"

namespace cortado::rwkv_threads_test {
namespace {

using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;

constexpr int64_t kRows = 3, kTokens = 21, kHeads = 5, kSize = 20, kWidth = kHeads * kSize;

TEST(Rwkv7Threads, Shift) {
  Floats x = random_floats(kTokens * kWidth), one = random_floats(kWidth), other = random_floats(kWidth);
  Floats mixed(2 * kTokens * kWidth);
  std::vector<const float*> before(kTokens);
  for (int64_t t = 1; t < kTokens; ++t) before[t] = x.data() + (t - 1) * kWidth;
  const rwkv7::Shift call{.tokens = kTokens,
                          .width = kWidth,
                          .count = 2,
                          .x = x.data(),
                          .before = before.data(),
                          .mixes = {one.data(), other.data()},
                          .mixed = mixed.data()};
  expect_same_on_any_number_of_threads([&](const kernels::Parallel& p) { rwkv7::shift(call, p); }, {&mixed});
}

TEST(Rwkv7Threads, SquaredRelu) {
  Floats x = random_floats(kTokens * kWidth), y(x.size());
  const rwkv7::SquaredRelu call{.tokens = kTokens, .width = kWidth, .x = x.data(), .y = y.data()};
  expect_same_on_any_number_of_threads([&](const kernels::Parallel& p) { rwkv7::squared_relu(call, p); }, {&y});
}

TEST(Rwkv7Threads, Heads) {
  const auto numbers = [] { return random_floats(kRows * kTokens * kWidth); };
  Floats r = numbers(), key = numbers(), v = numbers(), decay = numbers(), rate = numbers(), gate = numbers();
  Floats share = numbers(), first = numbers(), channel = random_floats(kWidth);
  Floats start = random_floats(kRows * kWidth * kSize), last(start.size()), o(r.size());
  const float* same = channel.data();
  const rwkv7::Heads call{.rows = kRows,
                          .tokens = kTokens,
                          .heads = kHeads,
                          .size = kSize,
                          .bounds = nullptr,
                          .eps = 1e-3F,
                          .r = r.data(),
                          .key = key.data(),
                          .v = v.data(),
                          .decay = decay.data(),
                          .rate = rate.data(),
                          .gate = gate.data(),
                          .share = share.data(),
                          .first = first.data(),
                          .channels = {same, same, same, same, same, same, same, same},
                          .start = start.data(),
                          .last = last.data(),
                          .o = o.data()};
  expect_same_on_any_number_of_threads([&](const kernels::Parallel& p) { rwkv7::heads(call, p); }, {&o, &last});
}

}  // namespace
}  // namespace cortado::rwkv_threads_test
