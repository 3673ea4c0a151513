// Sums of gradients over several processes.
#pragma once

#include <memory>
#include <vector>

#include "cortado/parallel/ranks.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace cortado {

// Each process differentiates its part of a sum. Afterwards every parameter's gradient is the sum over all processes,
// bit for bit the same in each. Buckets of about 25 MB are sent while the rest of the backward runs (c10d's Reducer, as
// in DistributedDataParallel). A parameter that no process's loss depends on keeps no gradient.
class GradientSum {
 public:
  GradientSum(std::vector<Tensor> parameters, const Ranks& ranks);
  ~GradientSum();

  // Calls `part`.backward(). `last` marks the step's last part, after which the sums are formed; earlier parts only
  // accumulate the gradients of this process.
  void backward(const Tensor& part, bool last);
  // Ends a step. Forms the sums at once if backward(..., last = true) has not formed them.
  void finish();

  // Bytes of gradients per step. Each of W processes sends about 2 (W - 1)/W times as many.
  int64_t bytes() const;

 private:
  std::vector<Tensor> parameters_;
  const Ranks& ranks_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // required: the Reducer uses it without a null check
  bool done_ = false;
};

}  // namespace cortado
