// The RG-LRU's gates as a GPU computes them, on the host (cuda/emulate.h), against float64 and its autograd.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/nn/rg_lru/kernel.cu"
#include "cortado/nn/rg_lru/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::rg_lru_gpu_test {
namespace {

using testing::alone, testing::expect_near;

void check(int64_t tokens, int64_t heads, int64_t size, at::ScalarType gates, at::ScalarType type) {
  at::manual_seed(7);
  cuda::EmulatedMachine machine(
      {{"rg_lru_gates", cuda::kernel_of<elementwise::GpuRgLru>([](const auto& in) { elementwise::rg_lru_gates(in); })},
       {"rg_lru_gates_gradient",
        cuda::kernel_of<elementwise::GpuRgLru>([](const auto& in) { elementwise::rg_lru_gates_gradient(in); })}});
  const int64_t width = heads * size;
  const auto numbers = [&](at::IntArrayRef sizes, at::ScalarType of) { return alone((at::randn(sizes) * 2).to(of)); };
  const Tensor first = at::zeros({2, tokens}, at::kBool);
  first.select(1, 0).fill_(true);
  const elementwise::RgLruInputs in{numbers({heads, 2 * tokens, size}, gates),
                                    numbers({heads, 2 * tokens, size}, gates),
                                    numbers({2, tokens, width}, type),
                                    alone(-8 * at::rand({width}).square()),
                                    numbers({width}, at::kFloat),
                                    numbers({width}, at::kFloat),
                                    first};
  std::vector<Tensor> leaves;
  for (const Tensor& leaf : {in.r, in.i, in.x, in.slope, in.r_bias, in.i_bias}) {
    leaves.push_back(leaf.to(at::kDouble).requires_grad_());
  }
  const auto gate = [&](const Tensor& y, const Tensor& bias) {
    return (y.transpose(0, 1).reshape({2, tokens, width}) + bias).sigmoid();
  };
  const Tensor log_a = gate(leaves[0], leaves[4]) * leaves[3];
  const Tensor keep = (-at::expm1(2 * log_a)).sqrt().masked_fill(first.unsqueeze(2), 1.0);
  const Tensor b = keep * gate(leaves[1], leaves[5]) * leaves[2];
  const auto made = elementwise::rg_lru_on_gpu(in, machine);
  expect_near(made.log_a, log_a, "log_a", 1e-6);
  expect_near(made.b, b, "b", 1e-6);
  const Tensor dlog_a = alone(at::randn(in.x.sizes())), db = alone(at::randn(in.x.sizes()));
  const std::vector<Tensor> results = {log_a, b};
  const auto right = torch::autograd::grad(results, leaves, {dlog_a.to(at::kDouble), db.to(at::kDouble)});
  const auto found = elementwise::rg_lru_gradient_on_gpu(in, dlog_a, db, 1000, machine);
  const auto most = [](at::ScalarType of) { return of == at::kFloat ? 2e-5 : 4e-3; };
  expect_near(found.r, right[0], "dr", most(gates));
  expect_near(found.i, right[1], "di", most(gates));
  expect_near(found.x, right[2], "dx", most(type));
  expect_near(found.slope, right[3], "dslope", 2e-5);
  expect_near(found.r_bias, right[4], "dr_bias", 2e-5);
  expect_near(found.i_bias, right[5], "di_bias", 2e-5);
}

void check_step(int64_t rows, int64_t heads, int64_t size, gpu::Order order) {
  at::manual_seed(9);
  cuda::EmulatedMachine machine({{"rg_lru_step", cuda::kernel_of<elementwise::GpuRgLruStep>(
                                                     [](const auto& in) { elementwise::rg_lru_step(in); })}},
                                order);
  const auto numbers = [](at::IntArrayRef sizes, double by) {
    return alone((at::randn(sizes) * by).to(at::kBFloat16));
  };
  const int64_t width = heads * size;
  const double scale = 1 / std::sqrt(double(size));
  const elementwise::RgLruStepInputs in{numbers({rows, 1, width}, 1),
                                        numbers({heads, size, size}, scale),
                                        numbers({width}, 0.5),
                                        numbers({heads, size, size}, scale),
                                        numbers({width}, 0.5),
                                        numbers({width}, 4),
                                        alone(at::arange(rows, at::kLong)),
                                        alone(at::randn({rows, width})),
                                        8.0};
  const auto wide = [](const Tensor& x) { return x.to(at::kDouble); };
  const auto gate = [&](const Tensor& weight, const Tensor& bias) {
    const Tensor blocks = wide(in.x).view({rows, heads, 1, size});
    return (at::matmul(blocks, wide(weight)).reshape({rows, width}) + wide(bias)).sigmoid();
  };
  const Tensor log_a = -8 * gate(in.r_weight, in.r_bias) * at::softplus(wide(in.lambda));
  const Tensor keep = (-at::expm1(2 * log_a)).sqrt().masked_fill(in.position.eq(0).unsqueeze(1), 1.0);
  const Tensor h = log_a.exp() * wide(in.start) + keep * gate(in.i_weight, in.i_bias) * wide(in.x).squeeze(1);
  const auto made = elementwise::rg_lru_step_on_gpu(in, machine);
  expect_near(made.h, h, "h", 3e-3);  // the products are rounded
  EXPECT_TRUE(at::equal(made.y.squeeze(1), made.h.to(at::kBFloat16)));
}

TEST(RgLruOnGpu, AStepIsTheDefinition) {
  for (const gpu::Order order : {gpu::Order{}, gpu::Order{.backwards = true}, gpu::Order{.warps_alone = true}}) {
    check_step(3, 2, 64, order);
    check_step(1, 3, 10, order);
    check_step(2, 1, 130, order);
  }
}

TEST(RgLruOnGpu, IsTheDefinition) {
  check(70, 1, 34, at::kFloat, at::kFloat);
  check(1, 3, 100, at::kFloat, at::kBFloat16);
  check(33, 4, 16, at::kBFloat16, at::kBFloat16);
}

}  // namespace
}  // namespace cortado::rg_lru_gpu_test
