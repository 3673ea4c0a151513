// For tests: comparing tensors, and gradients of weighted outputs.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

namespace cortado::testing {

using at::Tensor;

// The largest difference over the largest magnitude of `expected` (both in float64), or over `floor` if that is larger:
// for what is zero but for rounding. Infinite where shapes differ or where only one of the two is finite. Equal
// infinities count as equal.
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

// Each gradient against its counterpart, on its own scale; one far below the largest of them, on a hundredth of that
// one's (the gradient of a softmax over one key is zero but for rounding).
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

// d Σ_i <outputs_i, weights_i> / d inputs; an input that is not reached has gradient zero.
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

// Fixed pseudo-random weights of the outputs' shapes.
inline std::vector<Tensor> weights_like(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> weights;
  for (const auto& x : outputs) weights.push_back(at::randn(x.sizes(), x.options().requires_grad(false)));
  return weights;
}

}  // namespace cortado::testing
