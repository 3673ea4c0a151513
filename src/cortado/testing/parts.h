// Parts of sequences, without processes.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cortado/parallel/sequence_parts.h"

namespace cortado::testing {

// One part, of which what it makes of the start is asked: what the scan itself leaves.
class MadeOfStart final : public SequenceParts {
 public:
  Tensor tail_before(const Tensor&, const Tensor& start) const override { return start; }
  Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start, Decay kind) const override {
    return decayed(kind, decay, start) + own;
  }
  Tensor maximum_before(const Tensor&, const Tensor& start) const override { return start; }
};

// Equal, and so are the gradients of their products with the same numbers.
inline void expect_same(const Tensors& one, const Tensors& other, const Tensors& inputs) {
  Tensors weights;
  for (const Tensor& x : one) weights.push_back(at::randn(x.sizes(), x.options().requires_grad(false)));
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::allclose(one[i], other[i], 1e-9, 1e-9)) << i;
  const auto gradients = [&](const Tensors& of) { return torch::autograd::grad(of, inputs, weights); };
  const Tensors left = gradients(one), right = gradients(other);
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::allclose(left[i], right[i], 1e-8, 1e-9)) << "input " << i;
}

}  // namespace cortado::testing
