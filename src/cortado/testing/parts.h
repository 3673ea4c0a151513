// Sequence parts in a single process.
#pragma once

#include "cortado/parallel/sequence_parts.h"
#include "cortado/testing/compare.h"

namespace cortado::testing {

// A single part; state_before returns the state that the scan itself leaves.
class MadeOfStart final : public SequenceParts {
 public:
  Tensor tail_before(const Tensor&, const Tensor& start) const override { return start; }
  Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start, Decay kind) const override {
    return decayed(kind, decay, start) + own;
  }
  Tensor maximum_before(const Tensor&, const Tensor& start) const override { return start; }
};

// Plays all parts of a sequence one after the other. Each part makes the same calls and sees the arguments of the parts
// before it.
class PlayedParts final : public SequenceParts {
 public:
  // Ends the current part; the following calls belong to the next part.
  void next() { ++part_, call_ = 0; }

  Tensor tail_before(const Tensor& tail, const Tensor& start) const override {
    const auto& given = give({tail});
    if (part_ == 0) return start;
    EXPECT_EQ(given[part_ - 1][0].sizes(), tail.sizes());
    return given[part_ - 1][0];
  }
  Tensor state_before(const Tensor& decay, const Tensor& own, const Tensor& start, Decay kind) const override {
    const auto& given = give({decay, own, start});
    Tensor state = given[0][2];
    for (size_t part = 0; part < part_; ++part) state = decayed(kind, given[part][0], state) + given[part][1];
    return state;
  }
  Tensor maximum_before(const Tensor& own, const Tensor& start) const override {
    const auto& given = give({own.detach(), start.detach()});
    Tensor largest = given[0][1];
    for (size_t part = 0; part < part_; ++part) largest = at::maximum(largest, given[part][0]);
    return largest;
  }

 private:
  using Given = std::vector<std::vector<Tensor>>;  // [part]: the tensors that it passed to the call

  const Given& give(const std::vector<Tensor>& tensors) const {
    if (part_ == 0) calls_.emplace_back();
    calls_.at(call_).push_back(tensors);
    EXPECT_EQ(calls_[call_].size(), part_ + 1);
    return calls_[call_++];
  }

  size_t part_ = 0;
  mutable size_t call_ = 0;
  mutable std::vector<Given> calls_;
};

// Expects equal tensors and equal gradients of their products with the same random weights.
inline void expect_same(const std::vector<Tensor>& one, const std::vector<Tensor>& other,
                        const std::vector<Tensor>& inputs) {
  for (size_t i = 0; i < one.size(); ++i) EXPECT_CLOSE(one[i], other[i], 1e-10) << i;
  const auto weights = weights_like(other);
  expect_gradients_close(gradients(one, weights, inputs), gradients(other, weights, inputs), 1e-9);
}

}  // namespace cortado::testing
