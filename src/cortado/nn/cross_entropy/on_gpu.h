// The cross entropy of rows of logits by a kernel for GPUs.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::entropy {

// Whether it computes this: 16-bit logits [N, V] without gaps, V a multiple of 8, on a GPU that has kernels.
bool gpu_takes(const Tensor& logits);

// The losses of N rows, float32, by int64 targets [N]; NaN for a target outside of 0 .. V - 1. With `differentiate` the
// logits' memory has softmax - onehot afterwards.
Tensor losses(const Tensor& logits, const Tensor& targets, bool differentiate);
Tensor losses_on_gpu(const Tensor& logits, const Tensor& targets, bool differentiate, cuda::Machine& machine);

}  // namespace cortado::entropy
