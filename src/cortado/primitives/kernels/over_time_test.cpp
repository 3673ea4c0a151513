#include "cortado/primitives/kernels/over_time.h"

#include <gtest/gtest.h>

namespace cortado::kernels {
namespace {

// Of more streams than three quarters of the threads each is one thread's, and so are those of one segment.
TEST(OverTime, PaysWhereThreadsAreLeft) {
  for (const int64_t streams : {1, 2, 3}) {
    EXPECT_TRUE(pays_over_time(streams, 129, 4)) << streams;
    EXPECT_FALSE(pays_over_time(streams, 128, 4)) << streams;
  }
  EXPECT_FALSE(pays_over_time(4, 1000, 4));
  EXPECT_FALSE(pays_over_time(2, 1000, 2));
  EXPECT_FALSE(pays_over_time(1, 1000, 1));
  EXPECT_FALSE(pays_over_time(0, 1000, 4));
}

}  // namespace
}  // namespace cortado::kernels
