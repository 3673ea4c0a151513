// The kernels of Latte-Macchiato's one softmax, run on the host (cuda/emulate.h), against float64 and its autograd.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/mechanisms/macchiato/kernel.cu"
#include "cortado/mechanisms/macchiato/mix_on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::mix_gpu_test {
namespace {

using testing::alone;
using namespace latent;

cuda::EmulatedMachine emulated() {
  return cuda::EmulatedMachine(
      {{"mix_weights", cuda::kernel_of<GpuMixWeights>([](const auto& in) { latent::mix_weights(in); })},
       {"mix_weights_gradient", cuda::kernel_of<GpuMixWeights>(&mix_weights_gradient)},
       {"mix", cuda::kernel_of<GpuMix>([](const auto& in) { latent::mix(in); })},
       {"mix_gradient", cuda::kernel_of<GpuMix>(&mix_gradient)}});
}

void expect_near(const Tensor& found, const Tensor& right, const char* what) {
  testing::expect_near(found, right, what, 4e-3);
}

void check(int64_t latents, int64_t values, int64_t tokens) {
  at::manual_seed(3);
  const auto numbers = [&](int64_t width, double size = 1) {
    return alone((at::randn({2, tokens, 3, width}) * size).to(at::kBFloat16));
  };
  const Tensor logits = numbers(latents + 1, 3), far = numbers(values), near = numbers(values);
  const Tensor wide = logits.to(at::kDouble).requires_grad_(), other = near.to(at::kDouble).requires_grad_();
  const Tensor p = at::softmax(wide, -1), first = p.select(3, 0), rest = p.narrow(3, 1, latents);
  auto machine = emulated();
  const MixWeights made = mix_weights_on_gpu(logits, machine);
  expect_near(made.first, first, "first");
  expect_near(made.p, rest, "p");
  const Tensor o = far.to(at::kDouble) + first.unsqueeze(-1) * other;
  expect_near(mix_on_gpu(far, near, made.first, machine), o, "o");

  const Tensor grad_o = numbers(values), grad_p = numbers(latents);
  const auto right = torch::autograd::grad({o, rest}, {wide, other}, {grad_o.to(at::kDouble), grad_p.to(at::kDouble)});
  const auto [grad_near, grad_first] = mix_gradient_on_gpu(grad_o, near, made.first, machine);
  expect_near(grad_near, right[1], "dnear");
  expect_near(mix_weights_gradient_on_gpu(made, grad_first, grad_p, machine), right[0], "dlogits");
}

TEST(MixOnGpu, SoftmaxAndSumOfBothParts) {
  check(64, 64, 37);
  check(8, 16, 3);
  check(128, 128, 5);
  check(72, 72, 1);
}

}  // namespace
}  // namespace cortado::mix_gpu_test
