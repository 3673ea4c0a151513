// The gated SiLU as a GPU computes it, on the host (cuda/emulate.h), against float64 and its autograd.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/nn/gated_silu/kernel.cu"
#include "cortado/nn/gated_silu/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::gated_silu_gpu_test {
namespace {

using testing::alone, testing::expect_near;

TEST(GatedSiluOnGpu, IsTheDefinition) {
  cuda::EmulatedMachine machine(
      {{"gated_silu", cuda::kernel_of<fused::GpuGatedSilu>([](const auto& in) { fused::gated_silu(in); })},
       {"gated_silu_gradient",
        cuda::kernel_of<fused::GpuGatedSilu>([](const auto& in) { fused::gated_silu_gradient(in); })}});
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{1, 8}, {3, 7, 200}}) {
    at::manual_seed(1);
    const auto numbers = [&] { return alone((at::randn(sizes) * 3).to(at::kBFloat16)); };
    const Tensor gate = numbers(), up = numbers(), grad_y = numbers();
    const Tensor wide_gate = gate.to(at::kDouble).requires_grad_(), wide_up = up.to(at::kDouble).requires_grad_();
    const Tensor right = at::silu(wide_gate) * wide_up;
    const Tensor y = fused::gated_silu_on_gpu(gate, up, machine);
    expect_near(y, right, "y", 4e-3);
    const Tensor apart = at::silu(gate) * up;
    EXPECT_LT((y - apart).abs().gt(apart.abs() * 0.01).to(at::kFloat).mean().item<float>(), 1e-3);
    const auto wanted = torch::autograd::grad({right}, {wide_gate, wide_up}, {grad_y.to(at::kDouble)});
    const auto found = fused::gated_silu_gradient_on_gpu(gate, up, grad_y, machine);
    expect_near(found.gate, wanted[0], "dgate", 4e-3);
    expect_near(found.up, wanted[1], "dup", 4e-3);
  }
}

}  // namespace
}  // namespace cortado::gated_silu_gpu_test
