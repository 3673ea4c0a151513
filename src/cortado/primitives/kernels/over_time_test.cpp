#include "cortado/primitives/kernels/over_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace cortado::kernels {
namespace {

// Time is split if the idle threads are worth the extra work; a stream of one segment is never split.
TEST(OverTime, PaysWhereThreadsAreLeft) {
  for (const int64_t streams : {1, 2, 3}) {
    EXPECT_TRUE(pays_over_time(streams, 129, 4, 4.0 / 3)) << streams;
    EXPECT_FALSE(pays_over_time(streams, 128, 4, 4.0 / 3)) << streams;
    EXPECT_EQ(pays_over_time(streams, 129, 4, 2), streams <= 2) << streams;
  }
  EXPECT_FALSE(pays_over_time(4, 1000, 4, 4.0 / 3));
  EXPECT_FALSE(pays_over_time(2, 1000, 2, 4.0 / 3));
  EXPECT_FALSE(pays_over_time(1, 1000, 1, 4.0 / 3));
  EXPECT_FALSE(pays_over_time(0, 1000, 4, 4.0 / 3));
}

// Every number of a state lies in one block, blocks of rows first, and there are as many as threads where they can be cut.
TEST(OverTime, BlocksCoverAState) {
  for (const auto& [keys, values, threads] :
       {std::array<int64_t, 3>{64, 64, 4}, {33, 40, 4}, {16, 100, 5}, {7, 9, 8}}) {
    for (const bool by_rows : {true, false}) {
      const Blocks blocks =
          by_rows ? row_blocks(keys, values, 1, threads) : column_blocks(keys, values, 1, threads, 16);
      std::vector<int> covered(static_cast<size_t>(keys * values));
      for (int64_t i = 0; i < blocks.count(); ++i) {
        for (int64_t k = blocks.key(i); k < std::min(keys, blocks.key(i) + blocks.keys); ++k) {
          for (int64_t v = blocks.value(i); v < std::min(values, blocks.value(i) + blocks.values); ++v) {
            ++covered[static_cast<size_t>(k * values + v)];
          }
        }
      }
      EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; }));
    }
  }
  EXPECT_EQ(row_blocks(64, 64, 1, 4).down, 4);
  EXPECT_EQ(row_blocks(64, 64, 1, 4).across, 1);
  EXPECT_EQ(row_blocks(32, 64, 1, 8).count(), 8);
  EXPECT_EQ(row_blocks(64, 64, 4, 4).count(), 1);
  EXPECT_EQ(column_blocks(64, 64, 1, 4, 32).across, 2);
}

}  // namespace
}  // namespace cortado::kernels
