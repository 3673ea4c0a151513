// Shared by the tests of GPU kernels: comparison of results, and states that several heads read.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace cortado::testing {

using at::Tensor;

// Compares by the norm of the difference over the norm of `right` (float64), which may be zero up to rounding.
inline void expect_near(const Tensor& found, const Tensor& right, const char* what, double most) {
  ASSERT_EQ(found.sizes(), right.sizes()) << what;
  const double error = (found.to(at::kDouble) - right).norm().item<double>() / (right.norm().item<double>() + 1e-12);
  EXPECT_LT(error, most) << what;
}

// If several heads read one state, each has a copy of it, and the gradient of the final state goes to the first copy.
// These return the first copies [N, state heads, K, V] of states [N, heads, K, V], and a gradient [N, state heads, K,
// V] as one for all heads, which is zero for the other copies.
inline Tensor first_copy(const Tensor& states, int64_t state_heads) {
  return states.unflatten(1, {state_heads, -1}).select(2, 0);
}
inline Tensor to_first_copy(const Tensor& gradient, int64_t heads) {
  const Tensor all = at::zeros({gradient.size(0), heads, gradient.size(2), gradient.size(3)});
  first_copy(all, gradient.size(1)).copy_(gradient);
  return all;
}

}  // namespace cortado::testing
