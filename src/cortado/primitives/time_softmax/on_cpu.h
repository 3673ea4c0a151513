// The kernel of softmaxes over time, for torch's tensors.
#pragma once

#include <vector>

#include "cortado/primitives/time_softmax/op.h"

namespace cortado::softmax {

// Whether the kernel computes this: float32 on the CPU.
bool kernel_takes(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum);

// Undefined states: not given. `bounds` of packed sequences, or null.
TimeSoftmax softmax_by_kernel(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum,
                              const std::vector<int64_t>* bounds);

}  // namespace cortado::softmax
