// The cross-entropy of rows of logits by a GPU kernel.
#pragma once

#include "cortado/primitives/cuda/machine.h"
#include "cortado/primitives/types.h"

namespace cortado::entropy {

// Whether the kernel computes this: contiguous 16-bit logits [N, V], V a multiple of 8, a GPU on which kernels can run.
bool gpu_takes(const Tensor& logits);

// Returns the N rows' losses, float32, for int64 targets [N]; NaN for a target outside of 0 .. V - 1. With
// `differentiate` the logits are overwritten by softmax - onehot.
Tensor losses(const Tensor& logits, const Tensor& targets, bool differentiate);
Tensor losses_on_gpu(const Tensor& logits, const Tensor& targets, bool differentiate, cuda::Machine& machine);

}  // namespace cortado::entropy
