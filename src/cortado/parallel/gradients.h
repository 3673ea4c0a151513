// Gradients of several processes, added up.
#pragma once

#include <memory>
#include <vector>

#include "cortado/parallel/ranks.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace cortado {

// Each process differentiates its part of a sum; afterwards every parameter's gradient is the sum of all, the same bits
// everywhere. Buckets of about 25 MB are on their way while the rest of the backward runs (c10d's Reducer, as in
// DistributedDataParallel). A parameter that no process's loss depends on keeps no gradient.
class GradientSum {
 public:
  GradientSum(std::vector<Tensor> parameters, const Ranks& ranks);
  ~GradientSum();

  // `part`.backward(). `last`: of this step's, so the sums are formed; the others only add to the gradients here.
  void backward(const Tensor& part, bool last);
  // At the end of a step whose gradients were not all made by backward(): forms the sums at once.
  void finish();

  // That a step adds up: each process sends about 2 (W - 1)/W times as many.
  int64_t bytes() const;

 private:
  std::vector<Tensor> parameters_;
  const Ranks& ranks_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer calls it without asking whether there is one
  bool done_ = false;
};

}  // namespace cortado
