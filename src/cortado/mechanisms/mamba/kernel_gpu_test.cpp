// Mamba's GPU kernels, run on the host (cuda/emulate.h) and compared with the float64 definition: outputs and all
// gradients.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/mechanisms/mamba/kernel.cu"
#include "cortado/mechanisms/mamba/on_gpu.h"
#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/testing/gpu_kernels.h"
#include "cortado/testing/kernels.h"

namespace cortado::mamba_kernel_gpu_test {
namespace {

using namespace mamba_kernel;
using testing::alone;

struct Case {
  int64_t batch = 1, tokens = 40, channels = 70, states = 16;
  bool last = true;  // the last state has a gradient
  std::vector<int64_t> bounds = {};
  gpu::Order order = {};
};

template <int kStates>
void add(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = " STATES=" + std::to_string(kStates);
  to["selective_scan" + variant] = cuda::kernel_of<GpuSelective>([](const auto& in) { Selective<kStates>(in).run(); });
  to["selective_gradient" + variant] =
      cuda::kernel_of<GpuSelective>([](const auto& in) { SelectiveGradient<kStates>(in).run(); });
}

void expect_near(const Tensor& found, const Tensor& right, const char* what) {
  testing::expect_near(found, right, what, 3e-6);
}

void check(const Case& c) {
  at::manual_seed(4);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes); };
  std::vector<Tensor> narrow{
      random({c.batch, c.tokens, c.channels}), random({c.batch, c.tokens, c.channels}).exp() * 0.2,
      -random({c.channels, c.states}).exp(),   random({c.batch, c.tokens, c.states}),
      random({c.batch, c.tokens, c.states}),   random({rows, c.channels, c.states})};
  for (Tensor& x : narrow) x = alone(x);
  std::vector<Tensor> leaves;
  for (const Tensor& x : narrow) leaves.push_back(x.to(at::kDouble).requires_grad_());
  const auto given = [](const std::vector<Tensor>& x) { return SelectiveScan{x[0], x[1], x[2], x[3], x[4]}; };
  const OptionalTensor cu = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  const auto [y, last] = selective_scan(given(leaves), leaves[5], cu);
  const Tensor dy = random(y.sizes()), dlast = c.last ? random(last.sizes()) : Tensor();
  const auto right = torch::autograd::grad(
      {y, last}, leaves, {dy.to(at::kDouble), (c.last ? dlast : at::zeros(last.sizes())).to(at::kDouble)});

  cuda::EmulatedMachine::Kernels kernels;
  add<16>(kernels);
  add<32>(kernels);
  add<64>(kernels);
  cuda::EmulatedMachine machine(kernels, c.order);
  const auto* bounds = c.bounds.empty() ? nullptr : &c.bounds;
  const auto [found, found_last] = scan_on_gpu(given(narrow), narrow[5], bounds, machine);
  expect_near(found, y, "y");
  expect_near(found_last, last, "last");
  const auto gradients = differentiate_on_gpu(given(narrow), narrow[5], bounds, dy, dlast, machine);
  const char* names[] = {"dx", "dstep", "da", "db", "dc", "dstart"};
  for (size_t i = 0; i < right.size(); ++i) expect_near(gradients[i], right[i], names[i]);
}

TEST(MambaOnGpu, EveryOrderOfThreadsAndCopies) {
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) check({.channels = 5, .order = {backwards, alone, late}});
    }
  }
}

TEST(MambaOnGpu, EveryLength) {
  for (const int64_t tokens : {1, 15, 16, 17, 33}) check({.tokens = tokens, .channels = 3});
}

TEST(MambaOnGpu, RowsChannelsAndStates) {
  check({.batch = 2, .last = false});
  for (const int64_t states : {1, 7, 20, 64}) check({.tokens = 18, .channels = 65, .states = states});
}

TEST(MambaOnGpu, Packed) { check({.channels = 4, .bounds = {0, 3, 3, 20, 40}}); }

}  // namespace
}  // namespace cortado::mamba_kernel_gpu_test
