// Parts of sequences, without processes.
#pragma once

#include "cortado/parallel/sequence_parts.h"
#include "cortado/testing/compare.h"

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
inline void expect_same(const std::vector<Tensor>& one, const std::vector<Tensor>& other,
                        const std::vector<Tensor>& inputs) {
  for (size_t i = 0; i < one.size(); ++i) EXPECT_CLOSE(one[i], other[i], 1e-10) << i;
  const auto weights = weights_like(other);
  expect_gradients_close(gradients(one, weights, inputs), gradients(other, weights, inputs), 1e-9);
}

}  // namespace cortado::testing
