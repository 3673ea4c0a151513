// The GPU kernel that joins a ring with a new token, on the host (cuda/emulate.h), against join_past.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/mechanisms/shared/ring/kernel.cu"
#include "cortado/mechanisms/shared/ring/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/kernels.h"

namespace cortado::ring_gpu_test {
namespace {

using testing::alone;

void check(int64_t places, int64_t tokens, int64_t heads, int64_t key_size, int64_t value_size) {
  at::manual_seed(8);
  cuda::EmulatedMachine machine(
      {{"join_ring", cuda::kernel_of<window::GpuRing>([](const auto& in) { window::join_ring(in); })}});
  const auto numbers = [&](int64_t count, int64_t width) {
    return alone(at::randn({3, count, heads, width}).to(at::kBFloat16));
  };
  const Tensor k = numbers(tokens, key_size), v = numbers(tokens, value_size);
  // As a state has it: the last places of longer memory.
  const Tensor kept_k = numbers(places + 2, key_size).narrow(1, 2, places), kept_v = numbers(places, value_size);
  const Tensor position = alone(at::tensor({0, 2, 1000}, at::kLong));
  const JoinedKeys found = window::join_ring_on_gpu({kept_k, kept_v, position}, k, v, machine);
  const JoinedKeys right = join_past({kept_k, kept_v, position.clamp_max(places)}, k, v, {});
  EXPECT_TRUE(at::equal(found.k, right.k));
  EXPECT_TRUE(at::equal(found.v, right.v));
  EXPECT_TRUE(at::equal(*found.first_key, *right.first_key));
}

TEST(RingOnGpu, IsJoinPast) {
  check(17, 1, 3, 64, 64);
  check(5, 3, 1, 8, 24);
  check(0, 1, 2, 16, 16);
}

}  // namespace
}  // namespace cortado::ring_gpu_test
