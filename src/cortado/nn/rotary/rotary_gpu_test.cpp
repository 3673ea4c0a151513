// The GPU kernels for rotary positions, run on the host (cuda/emulate.h), against float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/nn/rotary/kernel.cu"
#include "cortado/nn/rotary/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/kernels.h"

namespace cortado::rotary_gpu_test {
namespace {

using testing::alone;

void check(int64_t width, int64_t half, int64_t tables) {
  at::manual_seed(5);
  cuda::EmulatedMachine machine(
      {{"rotary", cuda::kernel_of<window::GpuRotary>([](const auto& in) { window::turn(in); })}});
  const Tensor x = alone(at::randn({2, 37, 3, width}).to(at::kBFloat16)), angles = at::rand({tables, 37, 1, half}) * 6;
  const Tensor cos = alone(angles.cos()), sin = alone(angles.sin());
  for (const float direction : {1.0f, -1.0f}) {
    const auto parts = x.to(at::kDouble).split_with_sizes({half, half, width - 2 * half}, 3);
    const Tensor c = cos.to(at::kDouble), s = sin.to(at::kDouble) * direction;
    const Tensor right = at::cat({c * parts[0] - s * parts[1], c * parts[1] + s * parts[0], parts[2]}, 3);
    const Tensor found = window::turn_on_gpu(x, cos, sin, direction, machine).to(at::kDouble);
    EXPECT_LT((found - right).norm().item<double>(), 4e-3 * right.norm().item<double>()) << width << " " << half;
  }
}

TEST(RotaryOnGpu, TurnsPairsOfChannels) {
  check(64, 32, 1);
  check(128, 64, 2);
  check(24, 8, 1);  // the last channels are copied
}

void check_token(int64_t heads, int64_t key_heads, int64_t width, int64_t half) {
  at::manual_seed(6);
  cuda::EmulatedMachine machine(
      {{"rotary_token", cuda::kernel_of<window::GpuTokenRotary>([](const auto& in) { window::turn_token(in); })}});
  const auto numbers = [&](int64_t count) { return alone(at::randn({3, 1, count, width}).to(at::kBFloat16)); };
  const Tensor q = numbers(heads), k = numbers(key_heads);
  const Tensor positions = alone(at::tensor({0, 77, 1000003}, at::kLong));
  const Tensor frequencies = alone(at::rand({half}, at::kDouble));
  const Tensor angles = (positions.to(at::kDouble).unsqueeze(1) * frequencies).view({3, 1, 1, half});
  constexpr double kFactor = 1.25;
  const Tensor c = angles.cos() * kFactor, s = angles.sin() * kFactor;
  const auto turned = window::turn_token_on_gpu(q, k, {positions, frequencies, kFactor}, machine);
  for (const auto& [x, found] : {std::pair{q, turned.q}, {k, turned.k}}) {
    const auto parts = x.to(at::kDouble).split_with_sizes({half, half, width - 2 * half}, 3);
    const Tensor right = at::cat({c * parts[0] - s * parts[1], c * parts[1] + s * parts[0], parts[2]}, 3);
    const Tensor off = (found.to(at::kDouble) - right).norm();
    EXPECT_LT(off.item<double>(), 4e-3 * right.norm().item<double>()) << width << " " << half;
  }
}

TEST(RotaryOnGpu, TurnsAToken) {
  check_token(3, 1, 64, 32);
  check_token(5, 5, 128, 64);
  check_token(2, 7, 24, 8);
}

}  // namespace
}  // namespace cortado::rotary_gpu_test
