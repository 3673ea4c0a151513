// The GPU's kernels of the short convolution, on the host (cuda/emulate.h), against the definition in float64.
#define CORTADO_EMULATE
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/primitives/cuda/emulated_machine.h"
#include "cortado/primitives/short_conv/kernel.cu"
#include "cortado/primitives/short_conv/on_gpu.h"
#include "cortado/primitives/short_conv/op.h"
#include "cortado/testing/kernels.h"

namespace cortado::short_conv_kernel_gpu_test {
namespace {

using testing::alone;
using namespace convolution;

struct Case {
  int64_t batch = 2, tokens = 150, channels = 300, taps = 4;
  bool silu = true, bias = true, state = true, short_numbers = false,
       wide_weight = false;  // wide_weight: weight in float32 and transposed
  std::vector<int64_t> bounds = {};
};

template <int kTaps, bool kShort>
void add(cuda::EmulatedMachine::Kernels& to) {
  const std::string variant = " TAPS=" + std::to_string(kTaps) + (kShort ? " SHORT" : "");
  to["short_conv_forward" + variant] =
      cuda::kernel_of<GpuConv>([](const GpuConv& in) { Conv<kTaps, kShort>(in).forward(); });
  to["short_conv_backward" + variant] =
      cuda::kernel_of<GpuConv>([](const GpuConv& in) { Conv<kTaps, kShort>(in).backward(); });
}

void check(const Case& c) {
  at::manual_seed(7);
  const auto rows = c.bounds.empty() ? c.batch : int64_t(c.bounds.size()) - 1;
  const auto type = c.short_numbers ? at::kBFloat16 : at::kFloat;
  const Tensor x = alone(at::randn({c.batch, c.tokens, c.channels}).to(type)),
               weight = c.wide_weight ? at::randn({c.taps, c.channels}).t()
                                      : alone(at::randn({c.channels, c.taps}).to(type));
  const Tensor bias = c.bias ? at::randn({c.channels}).to(type) : Tensor();
  const Tensor initial = c.state ? alone(at::randn({rows, c.taps - 1, c.channels})) : Tensor();
  const OptionalTensor cu = c.bounds.empty() ? OptionalTensor() : OptionalTensor(at::tensor(c.bounds, at::kLong));
  std::vector<Tensor> leaves;
  const auto leaf = [&](const Tensor& of) -> OptionalTensor {
    if (!of.defined()) return {};
    leaves.push_back(of.to(at::kDouble).requires_grad_());
    return leaves.back();
  };
  const OptionalTensor wide_x = leaf(x), wide_weight = leaf(weight), wide_bias = leaf(bias),
                       wide_initial = leaf(initial);
  const auto [y, last] =
      short_conv_reference(*wide_x, *wide_weight, wide_bias, c.silu ? "silu" : "none", wide_initial, cu);
  cuda::EmulatedMachine::Kernels kernels;
  add<4, false>(kernels);
  add<4, true>(kernels);
  add<1, false>(kernels);
  add<7, false>(kernels);
  cuda::EmulatedMachine machine(kernels);
  const GpuInputs in{x, weight, bias, initial, c.silu};
  const Bounds bounds("test", cu, c.tokens);
  const double most = c.short_numbers ? 6e-3 : 1e-5;
  const auto near = [most](const Tensor& found, const Tensor& right, const char* what) {
    ASSERT_EQ(found.sizes(), right.sizes()) << what;
    EXPECT_LE((found.to(at::kDouble) - right).norm().item<double>(), most * (right.norm().item<double>() + 1e-9))
        << what;
  };
  const auto [found, found_last] = forward_on_gpu(in, bounds, machine);
  near(found, y, "y");
  near(found_last, last, "last");
  const Tensor grad_y = alone(at::randn(y.sizes()).to(type)), grad_last = at::randn(last.sizes());
  const auto right = torch::autograd::grad({y, last}, leaves, {grad_y.to(at::kDouble), grad_last.to(at::kDouble)},
                                           c10::nullopt, false, true);
  const auto [dx, dweight, dbias, dinitial] = backward_on_gpu(in, bounds, grad_y, grad_last, machine);
  near(dx, right[0], "dx");
  near(dweight, right[1], "dweight");
  size_t next = 2;
  if (c.bias) near(dbias, right[next++], "dbias");
  if (c.state && c.taps > 1) near(dinitial, right[next], "dinitial");
}

TEST(ShortConvOnGpu, IsTheDefinition) {
  check({});
  check({.silu = false, .bias = false, .state = false});
  check({.short_numbers = true});
  check({.short_numbers = true, .wide_weight = true});
  check({.wide_weight = true});
  check({.taps = 7});
  check({.taps = 1, .state = false});
  for (const int64_t tokens : {1, 2, 3, 64, 65}) check({.tokens = tokens, .channels = 10});
}

TEST(ShortConvOnGpu, Packed) { check({.batch = 1, .tokens = 200, .channels = 20, .bounds = {0, 2, 2, 70, 200}}); }

}  // namespace
}  // namespace cortado::short_conv_kernel_gpu_test
