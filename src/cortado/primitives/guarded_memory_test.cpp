// Tests testing/guarded_memory.cpp, which all tests use unless a sanitizer does its work.
#include <ATen/ops/empty.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "cortado/primitives/common.h"

namespace cortado {
namespace {

#ifndef __SANITIZE_ADDRESS__
TEST(GuardedMemory, ANumberWrittenBesideATensorIsAFailure) {
  const auto write = [](int64_t place) { at::empty({3}).mutable_data_ptr<float>()[place] = 1; };
  EXPECT_NONFATAL_FAILURE(write(3), "beside a tensor of 12 bytes");
  EXPECT_NONFATAL_FAILURE(write(-1), "beside a tensor of 12 bytes");
  write(2);
}

TEST(GuardedMemory, NumbersThatNothingWroteAreNotANumber) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const Tensor x = at::empty({5}, type);
    EXPECT_TRUE(x.isnan().all().item<bool>()) << x;
  }
}
#endif

}  // namespace
}  // namespace cortado
