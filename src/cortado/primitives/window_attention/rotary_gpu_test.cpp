// Rotary positions as a GPU computes them, on the host (cuda/emulate.h), against float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/window_attention/kernel_rotary.cu"
#include "cortado/primitives/window_attention/rotary_on_gpu.h"
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
  check(24, 8, 1);  // the last channels as they are
}

}  // namespace
}  // namespace cortado::rotary_gpu_test
