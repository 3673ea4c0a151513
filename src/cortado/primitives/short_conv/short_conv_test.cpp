#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/base/error.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/kernels/kernel.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/short_conv/kernel.h"
#include "cortado/primitives/short_conv/op.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/kernels.h"

namespace cortado::short_conv_test {
namespace {

using testing::error_of;
using testing::kNoError;
using testing::relative_error;

struct Case {
  std::string name = "";
  int64_t batch = 2, tokens = 17, width = 5, taps = 4;
  bool bias = true;
  std::string activation = "silu";
  bool state = true;
  std::vector<int64_t> bounds = {};
  at::ScalarType type = at::kDouble;
  double magnitude = 1.0;
};

struct Inputs {
  Tensor x, weight;
  OptionalTensor bias, state, cu_seqlens;
  std::vector<Tensor> leaves;
};

Inputs make_inputs(const Case& c) {
  at::manual_seed(5);
  Inputs in;
  const auto leaf = [&](std::vector<int64_t> shape, double magnitude = 1.0) {
    in.leaves.push_back((at::randn(shape, at::kDouble) * magnitude).to(c.type).requires_grad_());
    return in.leaves.back();
  };
  in.x = leaf({c.batch, c.tokens, c.width}, c.magnitude);
  in.weight = leaf({c.width, c.taps});
  const int64_t rows = c.bounds.empty() ? c.batch : static_cast<int64_t>(c.bounds.size()) - 1;
  if (c.bias) in.bias = leaf({c.width});
  if (c.state) in.state = leaf({rows, c.taps - 1, c.width});
  if (!c.bounds.empty()) in.cu_seqlens = at::tensor(c.bounds, at::kInt);
  return in;
}

struct Outcome {
  std::vector<Tensor> outputs, gradients;
};

template <typename Conv>
Outcome run(Conv conv, const Case& c, const Inputs& in) {
  const auto [y, state] = conv(in.x, in.weight, in.bias, c.activation, in.state, in.cu_seqlens);
  Outcome result{{y, state}, std::vector<Tensor>(in.leaves.size())};
  std::vector<Tensor> roots, weights;
  at::manual_seed(6);
  for (const auto& x : result.outputs) {
    const Tensor weight = at::randn(x.sizes(), at::kDouble).to(x.scalar_type());
    if (!x.requires_grad()) continue;
    roots.push_back(x);
    weights.push_back(weight);
  }
  if (!roots.empty()) result.gradients = torch::autograd::grad(roots, in.leaves, weights, std::nullopt, false, true);
  return result;
}

void expect_like_reference(const Case& c, double tolerance) {
  SCOPED_TRACE(c.name);
  const Inputs in = make_inputs(c);
  const Outcome own = run(&short_conv, c, in), judge = run(&short_conv_reference, c, in);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(own.outputs[i].scalar_type(), judge.outputs[i].scalar_type());
    EXPECT_LE(relative_error(own.outputs[i], judge.outputs[i]), tolerance) << "output " << i;
  }
  for (size_t i = 0; i < in.leaves.size(); ++i) {
    ASSERT_TRUE(own.gradients[i].defined()) << "leaf " << i;
    EXPECT_EQ(own.gradients[i].scalar_type(), in.leaves[i].scalar_type());
    const Tensor wanted = judge.gradients[i].defined() ? judge.gradients[i] : at::zeros_like(in.leaves[i]);
    EXPECT_LE(relative_error(own.gradients[i], wanted), tolerance) << "gradient of leaf " << i;
  }
}

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const int64_t t : {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 100, 257}) {
    for (const int64_t taps : {1, 2, 3, 4, 7}) {
      found.push_back({.name = concat("T = ", t, ", W = ", taps), .tokens = t, .taps = taps});
    }
  }
  for (const char* activation : {"none", "silu"}) {
    for (const bool bias : {false, true}) {
      for (const bool state : {false, true}) {
        Case c{.name = concat(activation, bias ? ", bias" : "", state ? ", state" : "")};
        c.activation = activation;
        c.bias = bias;
        c.state = state;
        found.push_back(c);
        c.batch = 1;
        c.tokens = 30;
        for (const int64_t taps : {1, 4}) {
          c.taps = taps;
          c.bounds = {0, 0, 1, 3, 4, 20, 20, 30};
          c.name += concat(", packed, W = ", taps);
          found.push_back(c);
        }
      }
    }
  }
  found.push_back({.name = "T = 1000", .batch = 1, .tokens = 1000});
  found.push_back({.name = "no batch", .batch = 0});
  found.push_back({.name = "no channels", .width = 0});
  found.push_back({.name = "one packed token", .batch = 1, .tokens = 1, .bounds = {0, 1}});
  found.push_back({.name = "no packed token", .batch = 1, .tokens = 0, .bounds = {0, 0, 0}});
  found.push_back({.name = "no sequence", .batch = 1, .tokens = 0, .bounds = {0}});
  return found;
}

TEST(ShortConv, LikeTheReference) {
  for (const Case& c : cases()) expect_like_reference(c, 1e-9);
}

TEST(ShortConv, Float32AndBfloat16) {
  for (Case c : cases()) {
    if (c.tokens > 100) continue;
    c.type = at::kFloat;
    expect_like_reference(c, 1e-4);
    c.type = at::kBFloat16;
    expect_like_reference(c, 1e-2);  // both accumulate in float32 and round once
  }
  Inputs in = make_inputs({.name = ""});
  in.x = in.x.to(at::kBFloat16);
  const auto [y, state] = short_conv(in.x, in.weight.to(at::kFloat), {}, "silu", in.state, {});
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(state.scalar_type(), at::kDouble);
}

TEST(ShortConv, Extremes) {
  Case c{.name = "1e4", .magnitude = 1e4};
  expect_like_reference(c, 1e-9);
  c.type = at::kFloat;
  expect_like_reference(c, 1e-4);
}

TEST(ShortConv, AnyCutPoint) {
  const Inputs in = make_inputs({.name = "", .tokens = 9});
  const at::NoGradGuard no_grad;
  const auto [whole, end] = short_conv(in.x, in.weight, in.bias, "silu", in.state);
  for (int64_t cut = 0; cut <= 9; ++cut) {
    const auto [left, middle] = short_conv(in.x.slice(1, 0, cut), in.weight, in.bias, "silu", in.state);
    const auto [right, last] = short_conv(in.x.slice(1, cut), in.weight, in.bias, "silu", middle);
    EXPECT_LE(relative_error(at::cat({left, right}, 1), whole), 1e-12);
    EXPECT_TRUE(last.equal(end));
  }
  Tensor state = *in.state;
  for (int64_t t = 0; t < 9; ++t) {
    const auto [y, next] = short_conv(in.x.narrow(1, t, 1), in.weight, in.bias, "silu", state);
    EXPECT_LE(relative_error(y, whole.narrow(1, t, 1)), 1e-12);
    state = next;
  }
  EXPECT_TRUE(state.equal(end));
}

// The kernel's own cases: vectors' tails, blocks' bounds, sequences shorter than the taps, taps longer than a block.
std::vector<Case> kernel_cases() {
  std::vector<Case> found;
  const std::vector<int64_t> lengths{1, 2, 5, 16, 17, 127, 128, 129, 130, 300};
  int64_t number = 0;
  for (const int64_t width : {1, 7, 8, 16, 17, 31, 64, 65, 128, 515}) {
    for (const int64_t taps : {1, 2, 4, 5}) {
      Case c{.tokens = lengths[number * 3 % lengths.size()], .width = width, .taps = taps};
      c.bias = number % 3 != 1;
      c.state = number % 4 != 2;
      c.activation = number % 2 ? "silu" : "none";
      c.type = number % 5 == 3 ? at::kBFloat16 : number % 7 == 5 ? at::kHalf : at::kFloat;
      if (number % 6 == 4) {
        c.batch = 1;
        c.tokens = 290;
        c.bounds = {0, 0, 1, 3, 4, 20, 20, 150, 290};
      }
      found.push_back(c);
      ++number;
    }
  }
  found.push_back({.tokens = 300, .width = 9, .taps = 140});
  found.push_back({.batch = 1, .tokens = 30, .taps = 7, .bounds = {0, 2, 2, 3, 9, 30}});
  found.push_back({.tokens = 40, .magnitude = 1e4});
  for (Case& c : found) {
    if (c.type == at::kDouble) c.type = at::kFloat;
    c.name = concat("T = ", c.tokens, ", D = ", c.width, ", W = ", c.taps, c.bounds.empty() ? "" : ", packed, ",
                    c.activation, " ", c.type);
  }
  return found;
}

// Copies inputs of any type to float64 leaves.
Inputs exact(const Inputs& in) {
  Inputs copy;
  copy.cu_seqlens = in.cu_seqlens;
  const auto leaf = [&](const Tensor& x) {
    copy.leaves.push_back(x.detach().to(at::kDouble).requires_grad_());
    return copy.leaves.back();
  };
  copy.x = leaf(in.x);
  copy.weight = leaf(in.weight);
  if (in.bias) copy.bias = leaf(*in.bias);
  if (in.state) copy.state = leaf(*in.state);
  return copy;
}

TEST(ShortConv, KernelEqualsTheDefinition) {
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  int64_t layout = 0;
  for (const Case& c : kernel_cases()) {
    Inputs in = make_inputs(c);
    const Outcome judge = run(&short_conv_reference, c, exact(in));
    const double tolerance = c.type == at::kFloat ? 3e-6 : c.type == at::kHalf ? 2e-3 : 1.5e-2;
    in.leaves[0] = in.x = testing::awkward(in.x.detach(), layout++ % testing::kAwkward).requires_grad_();
    for (const auto& isa : available_isas()) {
      SCOPED_TRACE(concat(isa, " ", c.name));
      select_isa(isa);
      const Outcome own = run(&short_conv, c, in);
      for (size_t i = 0; i < 2; ++i) EXPECT_CLOSE(own.outputs[i], judge.outputs[i], tolerance) << "output " << i;
      for (size_t i = 0; i < in.leaves.size(); ++i) {
        const Tensor wanted = judge.gradients[i].defined() ? judge.gradients[i] : at::zeros_like(in.leaves[i]);
        EXPECT_CLOSE(own.gradients[i], wanted, tolerance) << "gradient of leaf " << i;
      }
    }
  }
}

// Large results use non-temporal stores; with half the channels they do not.
TEST(ShortConv, LargeResultsEqualSmallOnes) {
  at::manual_seed(9);
  const testing::AnyIsa restore;
  const testing::Poisoned poisoned;
  const int64_t tokens = kernels::kPastCaches / 128 + 1000;
  const Tensor x = at::randn({1, tokens, 128}), weight = at::randn({128, 4});
  const auto run_half = [&](int64_t first, int64_t count) {
    const Tensor leaf = x.narrow(2, first, count).detach().requires_grad_();
    const Tensor y = std::get<0>(short_conv(leaf, weight.narrow(0, first, count), {}, "silu"));
    return at::stack({y.detach(), torch::autograd::grad({y}, {leaf}, {x.narrow(2, first, count)})[0]});
  };
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    EXPECT_TRUE(run_half(0, 128).equal(at::cat({run_half(0, 64), run_half(64, 64)}, -1))) << isa;
  }
}

// The last row of the states of an empty sequence, which is zero where there was no state before.
TEST(ShortConv, WritesNothingBehindTheLastState) {
  const testing::AnyIsa restore;
  const convolution::Block empty{.row = 0, .batch = 0, .begin = 0, .length = 0, .first = 0, .count = 0};
  for (const auto& isa : available_isas()) {
    select_isa(isa);
    std::vector<float> weight(4 * 5, 1.0f), states(3 * 5 + 1, 7.0f);
    convolution::ConvKernel call{.channels = 5, .taps = 4, .blocks = &empty, .count = 1, .weight = weight.data()};
    call.final_state = states.data();
    convolution::run_forward(call, kernels::parallel());
    EXPECT_EQ(std::count(states.begin(), states.end(), 0.0f), 15) << isa;
    EXPECT_EQ(states.back(), 7.0f) << isa;
  }
}

TEST(ShortConv, TheNumberOfThreadsChangesNothing) {
  const Case c{.name = "", .tokens = 1000, .width = 70, .type = at::kFloat};
  const Inputs in = make_inputs(c);
  testing::expect_any_threads_the_same([&] {
    const Outcome found = run(&short_conv, c, in);
    std::vector<Tensor> all(std::begin(found.outputs), std::end(found.outputs));
    all.insert(all.end(), std::begin(found.gradients), std::end(found.gradients));
    return all;
  });
}

TEST(ShortConv, Errors) {
  const Tensor x = at::zeros({2, 5, 3}), weight = at::zeros({3, 4});
  const auto with = [&](const Tensor& w, const OptionalTensor& bias, std::string_view activation,
                        const OptionalTensor& state, const OptionalTensor& bounds) {
    return error_of([&] { short_conv(x, w, bias, activation, state, bounds); });
  };
  EXPECT_EQ(with(at::zeros({4, 4}), {}, "none", {}, {}), "[short_conv] expected weight of shape [3, *], got [4, 4]");
  EXPECT_EQ(with(at::zeros({3, 0}), {}, "none", {}, {}), "[short_conv] weight must have at least one tap");
  EXPECT_EQ(with(weight, at::zeros({4}), "none", {}, {}), "[short_conv] expected bias of shape [3], got [4]");
  EXPECT_EQ(with(weight, {}, "relu", {}, {}), "[short_conv] activation must be \"none\" or \"silu\", got \"relu\"");
  EXPECT_EQ(with(weight, {}, "none", at::zeros({2, 4, 3}), {}),
            "[short_conv] expected initial_state of shape [2, 3, 3], got [2, 4, 3]");
  EXPECT_EQ(with(weight, {}, "none", {}, at::tensor({0, 5})), "[short_conv] cu_seqlens needs a batch of 1, got 2");
  EXPECT_NE(with(weight.to(at::kLong), {}, "none", {}, {}), kNoError);
}

}  // namespace
}  // namespace cortado::short_conv_test
