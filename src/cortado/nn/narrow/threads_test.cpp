// Products with narrow weights give the same bits on any number of threads. Without torch; also run by `make tsan`.
#include "cortado/testing/threads.h"

#include "cortado/nn/narrow/kernel.h"

namespace cortado::narrow_threads_test {
namespace {

using kernels::Parallel;
using testing::expect_same_on_any_number_of_threads;
using testing::Floats;
using testing::random_floats;

constexpr int64_t kRows = 230, kIn = 150, kOut = 100;

TEST(NarrowThreads, Int8) {
  Floats x = random_floats(kRows * kIn), weight = random_floats(kOut * kIn), y(kRows * kOut);
  narrow::Int8Matrix matrix{.out = kOut, .in = kIn};
  const auto numbers = static_cast<size_t>(matrix.blocks() * matrix.groups() * narrow::kColumns);
  std::vector<int8_t> values(numbers * narrow::kGroup);
  std::vector<uint16_t> scales(numbers);
  std::vector<int16_t> sums(numbers);
  matrix.values = values.data();
  matrix.scales = scales.data();
  matrix.sums = sums.data();
  for (int64_t block = 0; block < matrix.blocks(); ++block) {
    narrow::pack_int8(weight.data() + block * narrow::kColumns * kIn, kIn, matrix, block);
  }
  const narrow::Int8Map map{.matrix = matrix, .y = y.data(), .y_row = kOut};
  Floats room(static_cast<size_t>(narrow::int8_room(kRows, kIn)));
  const narrow::Int8Product call{
      .rows = kRows, .in = kIn, .x = x.data(), .x_row = kIn, .maps = &map, .count = 1, .room = room.data()};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { narrow::multiply_int8(call, p); }, {&y});
}

TEST(NarrowThreads, Short) {
  Floats x = random_floats(3 * kIn), y(3 * kOut);
  std::vector<uint16_t> weight(kOut * kIn, 0x3F81);
  const narrow::ShortProduct call{.rows = 3,
                                  .in = kIn,
                                  .out = kOut,
                                  .x = x.data(),
                                  .x_row = kIn,
                                  .weight = weight.data(),
                                  .w_row = kIn,
                                  .y = y.data(),
                                  .y_row = kOut};
  expect_same_on_any_number_of_threads([&](const Parallel& p) { narrow::multiply_short(call, p); }, {&y});
}

}  // namespace
}  // namespace cortado::narrow_threads_test
