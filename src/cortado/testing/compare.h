// Comparison of tensors and of gradients, for tests.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace cortado::testing {

using at::Tensor;

// Returns the largest absolute difference divided by the largest magnitude of `expected`, both in float64. `floor` is
// the least divisor, for results that are zero up to rounding. Infinite if shapes differ or if an entry is finite in
// only one of the two. Equal infinities count as equal.
inline double relative_error(const Tensor& actual, const Tensor& expected, double floor = 1e-30) {
  if (actual.sizes() != expected.sizes()) return INFINITY;
  if (expected.numel() == 0) return 0;
  const bool complex = expected.is_complex();
  const auto type = complex ? at::kComplexDouble : at::kDouble;
  const Tensor a = actual.to(type), e = expected.to(type);
  if (complex) return (a - e).abs().max().item<double>() / std::max(floor, e.abs().max().item<double>());
  const Tensor finite = at::isfinite(e);
  if (!at::equal(finite, at::isfinite(a))) return INFINITY;
  const Tensor same_elsewhere = (a == e).logical_or(finite).all();
  if (!same_elsewhere.item<bool>()) return INFINITY;
  const Tensor difference = (a - e).masked_fill(finite.logical_not(), 0).abs();
  const double scale = e.masked_fill(finite.logical_not(), 0).abs().max().item<double>();
  const double worst = difference.max().item<double>();
  return worst == 0 ? 0 : worst / std::max(scale, floor);
}

#define EXPECT_CLOSE(actual, expected, tolerance) \
  EXPECT_LE(::cortado::testing::relative_error(actual, expected), tolerance) << #actual << " against " << #expected

// Compares each gradient with its counterpart, relative to the counterpart's magnitude. The divisor is at least a
// hundredth of the largest gradient's magnitude, because some gradients are zero up to rounding (such as that of a
// softmax over one key).
inline void expect_gradients_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                                   double tolerance, const std::vector<std::string>& names = {}) {
  double largest = 1e-30;
  for (const auto& x : expected) {
    if (x.numel()) largest = std::max(largest, x.abs().max().item<double>());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(relative_error(actual[i], expected[i], 1e-2 * largest), tolerance)
        << "gradient of " << (i < names.size() ? names[i] : "input " + std::to_string(i));
  }
}

// Returns d Σ_i <outputs_i, weights_i> / d inputs; zeros for an input that the outputs do not depend on.
inline std::vector<Tensor> gradients(const std::vector<Tensor>& outputs, const std::vector<Tensor>& weights,
                                     const std::vector<Tensor>& inputs) {
  std::vector<Tensor> reached, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad()) continue;
    reached.push_back(outputs[i]);
    seeds.push_back(weights[i].to(outputs[i].options()));
  }
  if (reached.empty()) {
    std::vector<Tensor> zeros;
    for (const auto& x : inputs) zeros.push_back(at::zeros_like(x));
    return zeros;
  }
  auto result = torch::autograd::grad(reached, inputs, seeds, /*retain_graph=*/true, /*create_graph=*/false,
                                      /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!result[i].defined()) result[i] = at::zeros_like(inputs[i]);
  }
  return result;
}

// Returns normal random weights of the outputs' shapes, drawn from torch's global generator.
inline std::vector<Tensor> weights_like(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> weights;
  for (const auto& x : outputs) weights.push_back(at::randn(x.sizes(), x.options().requires_grad(false)));
  return weights;
}

// Returns the largest error of autograd's gradient of sum(f(x)·w), for random w, against central differences.
inline double gradient_error(const std::function<Tensor(const Tensor&)>& f, const Tensor& at_x) {
  Tensor x = at_x.clone().requires_grad_(true);
  const Tensor y = f(x);
  const Tensor w = at::randn_like(y);
  (y * w).sum().backward();
  const at::NoGradGuard no_grad;
  Tensor numeric = at::zeros_like(at_x);
  const double step = 1e-5;
  for (int64_t i = 0; i < at_x.numel(); ++i) {
    Tensor plus = at_x.clone(), minus = at_x.clone();
    plus.view(-1)[i] += step;
    minus.view(-1)[i] -= step;
    numeric.view(-1)[i] = ((f(plus) - f(minus)) * w).sum() / (2 * step);
  }
  return relative_error(x.grad(), numeric);
}

}  // namespace cortado::testing
