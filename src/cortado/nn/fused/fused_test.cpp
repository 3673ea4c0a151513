// The fused functions on every instruction set against their formulas in float64, outputs and all gradients.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/nn/fused/ops.h"
#include "cortado/testing/kernels.h"

namespace cortado::fused_test {
namespace {

using at::Tensor;
using testing::AnyIsa;
using testing::Poisoned;
using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Outputs and the gradients of one random weighting of them.
std::vector<Tensor> with_gradients(const Function& f, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.detach().requires_grad_());
  std::vector<Tensor> all = f(leaves);
  Tensor loss = at::zeros({}, at::kDouble);
  for (const Tensor& y : all) {
    const Tensor weight = at::linspace(-1, 1, y.numel(), at::kDouble).cos().view(y.sizes());
    loss = loss + (y.to(at::kDouble) * weight).sum();
  }
  const auto gradients = torch::autograd::grad({loss}, leaves);
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

void expect_near(const std::vector<Tensor>& got, const std::vector<Tensor>& right, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), right.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const Tensor error = (got[i].to(at::kDouble) - right[i]).abs().max() / right[i].abs().max().clamp_min(1e-30);
    EXPECT_LE(error.item<double>(), tolerance) << what << ", number " << i;
  }
}

// Inputs in three types, each of them also with gaps between its rows, on every instruction set.
void expect_same(const Function& fused, const Function& formula, const std::vector<Tensor>& inputs,
                 const std::string& what) {
  const AnyIsa restore;
  const Poisoned poisoned;
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<Tensor> given, wide;
    for (const Tensor& x : inputs) {
      given.push_back(x.dim() > 1 ? testing::awkward(x.to(type), static_cast<int64_t>(given.size() % 2) * 2)
                                  : x.to(at::kFloat));
      wide.push_back(given.back().to(at::kDouble));
    }
    const auto right = with_gradients(formula, wide);
    for (const auto& isa : available_isas()) {
      if (isa == "aten") continue;
      select_isa(isa);
      const double tolerance = type == at::kFloat ? 2e-6 : type == at::kHalf ? 2e-3 : 1e-2;
      expect_near(with_gradients(fused, given), right, tolerance, what + " " + isa + " " + at::toString(type));
    }
  }
}

Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

// An epsilon that matters: without one the derivative of a single channel is what cancellation leaves.
TEST(Fused, RmsNorm) {
  for (const int64_t width : {1, 7, 16, 31, 64, 130}) {
    for (const int64_t groups : {1, 2}) {
      const int64_t all = width * groups;
      at::manual_seed(all);
      const Function fused = [&](const auto& in) { return std::vector{fused::rms_norm(in[0], in[1], 0.1, groups)}; };
      const Function formula = [&](const auto& in) {
        const Tensor x = in[0].unflatten(-1, {groups, width});
        return std::vector{(x * (x.square().mean(-1, true) + 0.1).rsqrt()).flatten(-2) * in[1]};
      };
      expect_same(fused, formula, {normal({2, 35, all}), normal({all})}, "width " + std::to_string(all));
    }
  }
}

TEST(Fused, GatedSilu) {
  for (const int64_t width : {1, 17, 513}) {
    expect_same([](const auto& in) { return std::vector{fused::gated_silu(in[0], in[1])}; },
                [](const auto& in) { return std::vector{at::silu(in[0]) * in[1]}; },
                {normal({2, 35, width}) * 4, normal({2, 35, width})}, "width " + std::to_string(width));
  }
}

TEST(Fused, RgLruGates) {
  at::manual_seed(5);  // with other seeds a gate may be so near 1 that the kernel limits the root's derivative
  for (const int64_t width : {1, 17, 513}) {
    const Tensor first = at::arange(70).view({2, 35}).remainder(31).eq(0);
    const Function fused = [&](const auto& in) {
      auto [log_a, b] = fused::rg_lru_gates(in[0], in[1], in[2], in[3], first, 1000);
      return std::vector{log_a, b};
    };
    const Function formula = [&](const auto& in) {
      const Tensor log_a = in[0].sigmoid() * in[3];
      const Tensor keep = (-at::expm1(2 * log_a)).sqrt().masked_fill(first.unsqueeze(2), 1);
      return std::vector{log_a, keep * in[1].sigmoid() * in[2]};
    };
    const Tensor slope = -(normal({width}) * 3).exp();  // from almost no decay to complete decay
    expect_same(fused, formula, {normal({2, 35, width}), normal({2, 35, width}), normal({2, 35, width}), slope},
                "width " + std::to_string(width));
  }
}

TEST(Fused, RgLruGatesAtNoDecayAtAll) {
  const Tensor r = at::full({1, 1, 3}, -200.0, at::kFloat).requires_grad_(), one = at::ones({1, 1, 3});
  auto [log_a, b] = fused::rg_lru_gates(r, one, one, -at::ones({3}), at::zeros({1, 1}, at::kBool), 1000);
  EXPECT_TRUE(log_a.eq(0).all().item<bool>());
  EXPECT_TRUE(b.eq(0).all().item<bool>());
  EXPECT_TRUE(torch::autograd::grad({b.sum()}, {r})[0].isfinite().all().item<bool>());
}

TEST(Fused, RgLruStep) {
  const AnyIsa restore;
  const Poisoned poisoned;
  const at::NoGradGuard no_grad;
  for (const int64_t size : {1, 7, 33, 64, 130}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const int64_t blocks = 3, width = blocks * size;
      const auto floats = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kFloat); };
      const RgLruWeights weights{floats({blocks, size, size}), floats({width}), floats({blocks, size, size}),
                                 floats({width}), floats({width}) * 6};
      const Tensor x = floats({4, 1, width}).to(type), start = floats({4, width});
      const Tensor position = at::tensor(std::vector<int64_t>{0, 5, 0, int64_t{1} << 40}, at::kLong);
      const auto gate = [&](const Tensor& weight, const Tensor& bias) {
        const Tensor in = x.to(at::kDouble).view({4, blocks, 1, size});
        return (at::matmul(in, weight.to(at::kDouble)).view({4, width}) + bias.to(at::kDouble)).sigmoid();
      };
      const Tensor log_a =
          gate(weights.recurrence, weights.recurrence_bias) * (-8 * at::softplus(weights.lambda.to(at::kDouble)));
      const Tensor keep = (-at::expm1(2 * log_a)).sqrt().masked_fill(position.eq(0).unsqueeze(1), 1);
      const Tensor input = gate(weights.input, weights.input_bias) * x.squeeze(1).to(at::kDouble);
      const Tensor right = log_a.exp() * start.to(at::kDouble) + keep * input;
      for (const auto& isa : available_isas()) {
        if (isa == "aten") continue;
        select_isa(isa);
        expect_near({fused::rg_lru_step(x, weights, 8, position, start)}, {right}, 3e-6,
                    isa + " " + std::to_string(size));
      }
    }
  }
}

TEST(Fused, Rotary) {
  for (const int64_t half : {1, 5, 16, 31}) {
    for (const int64_t rest : {0, 3}) {
      for (const int64_t tables : {1, 2}) {
        const Tensor angles = normal({tables, 35, 1, half});
        const Function fused = [&](const auto& in) {
          return std::vector{fused::rotary(in[0], angles.cos().to(at::kFloat), angles.sin().to(at::kFloat))};
        };
        const Function formula = [&](const auto& in) {
          const Tensor a = in[0].narrow(3, 0, half), b = in[0].narrow(3, half, half);
          return std::vector{at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(),
                                      in[0].narrow(3, 2 * half, rest)},
                                     3)};
        };
        expect_same(fused, formula, {normal({2, 35, 3, 2 * half + rest})}, "half " + std::to_string(half));
      }
    }
  }
}

TEST(Fused, TheNumberOfThreadsChangesNothing) {
  const Tensor x = at::randn({1000, 48}), weight = at::randn({48});
  testing::expect_any_threads_the_same([&] {
    return with_gradients([](const auto& in) { return std::vector{fused::rms_norm(in[0], in[1], 1e-5, 1)}; },
                          {x, weight});
  });
}

TEST(Fused, ASecondDerivativeIsAnError) {
  const Tensor x = at::randn({3, 8}).requires_grad_();
  const Tensor y = fused::rms_norm(x, at::ones({8}), 1e-5, 1);
  EXPECT_ANY_THROW(torch::autograd::grad({y.square().sum()}, {x}, {}, true, /*create_graph=*/true));
}

}  // namespace
}  // namespace cortado::fused_test
