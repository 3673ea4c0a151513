#include "cortado/base/machine.h"

#include <gtest/gtest.h>

#include "cortado/base/stopwatch.h"

namespace cortado {
namespace {

TEST(Machine, DescribesThisOne) {
  const Machine machine = this_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_GE(machine.threads, 1);
  EXPECT_GT(machine.memory, int64_t{1} << 28);
  EXPECT_LE(machine.available, machine.memory);
  EXPECT_FALSE(machine.cpu_knows("no_such_instruction"));
}

TEST(Stopwatch, Medians) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
  EXPECT_GE(seconds_of([] {}), 0);
}

}  // namespace
}  // namespace cortado
