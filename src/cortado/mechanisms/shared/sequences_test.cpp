#include "cortado/mechanisms/shared/sequences.h"

#include <gtest/gtest.h>

#include "cortado/testing/errors.h"

namespace cortado::sequences_test {
namespace {

using testing::error_of;

TEST(CheckedIntegers, TheirBoundsBelongToThem) {
  const Tensor x = at::tensor({0, 5}, at::kInt);
  EXPECT_TRUE(checked_integers(x, "x", 0, 5).equal(at::tensor({0, 5}, at::kLong)));
  EXPECT_EQ(error_of([&] { checked_integers(x, "x", 1, 5); }), "x must be at least 1, got 0");
  EXPECT_EQ(error_of([&] { checked_integers(x, "x", 0, 4); }), "x must be at most 4, got 5");
  EXPECT_EQ(checked_integers(at::zeros({0}, at::kInt), "x", 1, 0).scalar_type(), at::kLong);
}

TEST(GivenTogether, AllOrNone) {
  const OptionalTensor one = at::zeros({1}), none;
  EXPECT_TRUE(given_together("op", {&one, &one}, "a and b"));
  EXPECT_FALSE(given_together("op", {&none, &none}, "a and b"));
  EXPECT_EQ(error_of([&] { given_together("op", {&one, &none}, "a and b"); }),
            "[op] a and b belong together: give all of them or none");
}

}  // namespace
}  // namespace cortado::sequences_test
