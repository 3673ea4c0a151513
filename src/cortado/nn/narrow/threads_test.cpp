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

TEST(NarrowThreads, Integers) {
  for (const auto& [bits, centred] : {std::pair{8, false}, {4, false}, {4, true}}) {
    Floats x = random_floats(kRows * kIn), y(kRows * kOut);
    narrow::Matrix matrix{.bits = bits, .out = kOut, .in = kIn};
    const auto numbers = static_cast<size_t>(matrix.blocks() * matrix.groups() * narrow::kColumns);
    std::vector<uint8_t> values(static_cast<size_t>(matrix.blocks() * matrix.block_bytes()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i * 37);
    std::vector<uint16_t> scales(numbers, 0x3C01), offsets(numbers, 0x3802);
    matrix.values = values.data();
    matrix.scales = scales.data();
    matrix.offsets = centred ? nullptr : offsets.data();
    const narrow::Map map{.matrix = matrix, .y = y.data(), .y_row = kOut};
    Floats room(static_cast<size_t>(narrow::room_of(kRows, kIn)));
    const narrow::Product call{
        .rows = kRows, .in = kIn, .x = x.data(), .x_row = kIn, .maps = &map, .count = 1, .room = room.data()};
    expect_same_on_any_number_of_threads([&](const Parallel& p) { narrow::multiply(call, p); }, {&y});
  }
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
