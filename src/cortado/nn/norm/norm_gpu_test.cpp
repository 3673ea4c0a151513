// The GPU kernels for RMS norms in training, run on the host (cuda/emulate.h), against float64 and its autograd.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/nn/norm/kernel.cu"
#include "cortado/nn/norm/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::norm_gpu_test {
namespace {

using testing::alone, testing::expect_near;

template <int kPieces, int kWarps>
void add(cuda::EmulatedMachine::Kernels& kernels) {
  const std::string variant = " PIECES=" + std::to_string(kPieces) + " WARPS=" + std::to_string(kWarps);
  kernels["norm_forward" + variant] =
      cuda::kernel_of<norm::GpuNorm>([](const auto& in) { norm::Norm<kPieces, kWarps>(in).forward(); });
  kernels["norm_backward" + variant] =
      cuda::kernel_of<norm::GpuNorm>([](const auto& in) { norm::Norm<kPieces, kWarps>(in).backward(); });
}

struct Case {
  int64_t rows = 37, width = 768;
  bool branch = true, stream = true, short_x = false;  // stream: `sum` has a gradient, too
  gpu::Order order = {};
};

void check(const Case& c) {
  at::manual_seed(2);
  cuda::EmulatedMachine::Kernels kernels;
  add<6, 1>(kernels);
  add<1, 1>(kernels);
  add<5, 2>(kernels);
  add<6, 4>(kernels);
  add<5, 8>(kernels);
  cuda::EmulatedMachine machine(kernels, c.order);
  const auto numbers = [&](at::ScalarType type) { return alone(at::randn({c.rows, c.width}).to(type)); };
  const Tensor x = numbers(c.short_x ? at::kBFloat16 : at::kFloat);
  const Tensor branch = c.branch ? numbers(at::kBFloat16) : Tensor(), weight = alone(at::randn({c.width}));
  std::vector<Tensor> leaves;
  for (const Tensor& leaf : {x, weight, branch}) {
    if (leaf.defined()) leaves.push_back(leaf.to(at::kDouble).requires_grad_());
  }
  const Tensor sum = c.branch ? leaves[0] + leaves[2] : leaves[0] * 1;
  const Tensor y = sum * (sum.square().mean(-1, true) + 1e-3).rsqrt() * leaves[1];
  const auto made = norm::norm_on_gpu(x, branch, weight, 1e-3, at::kBFloat16, machine);
  expect_near(made.sum, sum, "sum", c.short_x ? 1e-12 : 1e-6);
  expect_near(made.y, y, "y", 3e-3);
  const Tensor grad_y = numbers(at::kBFloat16), grad_sum = c.stream ? numbers(x.scalar_type()) : Tensor();
  std::vector<Tensor> results = {y}, given = {grad_y.to(at::kDouble)};
  if (c.stream) {
    results.push_back(sum);
    given.push_back(grad_sum.to(at::kDouble));
  }
  const auto right = torch::autograd::grad(results, leaves, given);
  const auto found = norm::norm_gradient_on_gpu(made.sum, made.scale, weight, grad_y, grad_sum, c.branch, machine);
  EXPECT_EQ(found.x.scalar_type(), x.scalar_type());
  expect_near(found.x, right[0], "dx", c.short_x ? 3e-3 : 1e-5);
  expect_near(found.weight, right[1], "dweight", 1e-5);
  if (c.branch) expect_near(found.branch, right[2], "dbranch", 3e-3);
}

TEST(NormOnGpu, IsTheDefinition) {
  check({});
  check({.branch = false});
  check({.stream = false});
  check({.branch = false, .stream = false, .short_x = true});
  check({.branch = false, .short_x = true});
  check({.rows = 1, .width = 4});
  check({.rows = 100, .width = 124});
}

TEST(NormOnGpu, RowsOfManyWarps) {
  check({.rows = 9, .width = 1100});
  check({.rows = 5, .width = 2816, .branch = false});
  check({.rows = 20, .width = 5000});
}

TEST(NormOnGpu, EveryOrderOfThreads) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) check({.rows = 21, .width = 1100, .order = {backwards, alone, false}});
  }
}

}  // namespace
}  // namespace cortado::norm_gpu_test
