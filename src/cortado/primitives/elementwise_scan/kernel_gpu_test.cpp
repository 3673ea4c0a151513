// The GPU's kernels of the elementwise scan, on the host (cuda/emulate.h), against the definition in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/elementwise_scan/kernel.cu"
#include "cortado/primitives/elementwise_scan/on_gpu.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/testing/kernels.h"

namespace cortado::elementwise_kernel_gpu_test {
namespace {

using testing::alone;
using namespace elementwise;

struct Case {
  int64_t batch = 2, tokens = 70, channels = 130, parts = 1;
  bool reverse = false, cuts = false;
  std::vector<int64_t> bounds = {};
  gpu::Order order = {};
};

template <typename In, typename Op>
void add(cuda::EmulatedMachine::Kernels& to, const std::string& name) {
  to[name + "_summarize"] = cuda::kernel_of<In>([](const In& in) { timewise::summarize(Op{in}, in.times); });
  to[name + "_join"] = cuda::kernel_of<In>([](const In& in) { timewise::join(Op{in}, in.times); });
  to[name + "_apply"] = cuda::kernel_of<In>([](const In& in) { timewise::apply(Op{in}, in.times); });
}

void expect_near(const Tensor& found, const Tensor& right, const char* what) {
  ASSERT_EQ(found.sizes(), right.sizes()) << what;
  EXPECT_LT((found.to(at::kDouble) - right).abs().max().item<double>(), 2e-5 * (1 + right.abs().max().item<double>()))
      << what;
}

void check(const Case& c) {
  at::manual_seed(5);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  Tensor log_a = at::rand({c.batch, c.tokens, c.channels}).log() * 0.2;
  if (c.cuts) log_a.masked_fill_(at::rand_like(log_a).lt(0.1), -INFINITY);
  log_a = alone(log_a);
  const Tensor b = alone(at::randn(log_a.sizes())), initial = alone(at::randn({rows, c.channels}));
  std::vector<Tensor> leaves;
  for (const Tensor& x : {log_a, b, initial}) leaves.push_back(x.to(at::kDouble).requires_grad_());
  const OptionalTensor cu = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  const auto [h, last] = elementwise_scan_reference(leaves[0], leaves[1], leaves[2], cu, c.reverse);
  cuda::EmulatedMachine::Kernels kernels;
  add<GpuScan, ScanOp>(kernels, "scan");
  add<GpuScanGradient, ScanGradientOp>(kernels, "scan_gradient");
  kernels["scan_stream"] = cuda::kernel_of<GpuScan>(&stream_scan);
  kernels["scan_gradient_stream"] = cuda::kernel_of<GpuScanGradient>(&stream_scan_gradient);
  cuda::EmulatedMachine machine(kernels, c.order);
  const Bounds bounds("test", cu, c.tokens);
  const auto [found, found_last] = forward_on_gpu(log_a, b, initial, bounds, c.reverse, machine, c.parts);
  expect_near(found, h, "h");
  expect_near(found_last, last, "last");
  const Tensor grad_h = alone(at::randn(b.sizes())), grad_last = at::randn(last.sizes());
  const auto right = torch::autograd::grad({h, last}, leaves, {grad_h.to(at::kDouble), grad_last.to(at::kDouble)});
  const auto [dlog_a, db, dinitial] =
      backward_on_gpu(grad_h, grad_last, {log_a, found, initial}, bounds, c.reverse, machine, c.parts);
  expect_near(dlog_a, right[0], "dlog_a");
  expect_near(db, right[1], "db");
  expect_near(dinitial, right[2], "dinitial");
}

TEST(ElementwiseScanOnGpu, IsTheDefinition) {
  check({});
  check({.tokens = 1});
  check({.tokens = 9, .channels = 1, .reverse = true});
  check({.cuts = true});
}

TEST(ElementwiseScanOnGpu, PartsOfTime) {
  check({.parts = 3});
  check({.parts = 7, .reverse = true, .cuts = true});
  check({.tokens = 400, .channels = 3, .parts = 0});
  check({.tokens = 320, .channels = 35, .parts = 300});  // more than a warp joins at once
  check({.tokens = 40, .channels = 3, .parts = 40, .order = {.backwards = true}});
}

// Rows and channels that fill the machine.
TEST(ElementwiseScanOnGpu, AllOfARowsTimeInOneBlock) {
  for (const int64_t tokens : {1, 15, 16, 17, 200}) check({.tokens = tokens, .channels = 132, .parts = 0});
  check({.channels = 132, .parts = 0, .reverse = true, .cuts = true});
  check({.batch = 1, .tokens = 90, .channels = 256, .parts = 0, .bounds = {0, 3, 3, 50, 90}});
  for (const bool backwards : {false, true}) {
    for (const bool alone : {false, true}) {
      for (const bool late : {false, true}) check({.channels = 192, .parts = 0, .order = {backwards, alone, late}});
    }
  }
}

TEST(ElementwiseScanOnGpu, Packed) {
  check({.batch = 1, .tokens = 90, .bounds = {0, 3, 3, 50, 90}});
  check({.batch = 1, .tokens = 90, .parts = 4, .reverse = true, .bounds = {0, 64, 90}});
}

}  // namespace
}  // namespace cortado::elementwise_kernel_gpu_test
