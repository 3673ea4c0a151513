// The cross-entropy of rows of logits; see cross_entropy_gpu.h. A block reads its row twice; the second time it is
// still in the GPU's cache.
#pragma once

#include "cortado/nn/cross_entropy/cross_entropy_gpu.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::entropy {

// Sum of e^(x - maximum) over the values seen so far.
struct Sum {
  float maximum, sum;

  DEV void add(Sum other) {
    const float most = other.maximum > maximum ? other.maximum : maximum;
    sum = device::relative(maximum, most) * sum + device::relative(other.maximum, most) * other.sum;
    maximum = most;
  }
};

DEV Sum sum_of_eight(const float* x) {
  Sum all = {x[0], 0};
  UNROLL for (int i = 1; i < 8; ++i) all.maximum = x[i] > all.maximum ? x[i] : all.maximum;
  UNROLL for (int i = 0; i < 8; ++i) all.sum += device::relative(x[i], all.maximum);
  return all;
}

// Returns the block's sum to every thread.
DEV Sum sum_of_block(Sum own) {
  auto* const room = reinterpret_cast<Sum*>(device::shared_memory());
  UNROLL for (int far = 1; far < 32; far <<= 1) {
    own.add({__shfl_xor_sync(~0u, own.maximum, far), __shfl_xor_sync(~0u, own.sum, far)});
  }
  if ((CORTADO_THREAD & 31) == 0) room[CORTADO_THREAD >> 5] = own;
  __syncthreads();
  Sum all = room[0];
  UNROLL_BY(1) for (int warp = 1; warp < kGpuEntropyThreads / 32; ++warp) all.add(room[warp]);
  return all;
}

DEV void cross_entropy(const GpuCrossEntropy& in) {
  const long long row = blockIdx.x;
  auto* const logits = static_cast<u16*>(in.logits) + row * in.classes;
  const long long target = in.targets[row];
  const float right =
      target >= 0 && target < in.classes ? device::short_number(logits, target) : device::infinity() * 0;
  Sum own = {-device::infinity(), 0};
  UNROLL_BY(2) for (int at = CORTADO_THREAD * 8; at < in.classes; at += kGpuEntropyThreads * 8) {
    float x[8];
    device::read8(x, logits, at);
    own.add(sum_of_eight(x));
  }
  const Sum all = sum_of_block(own);  // after this barrier every thread has read the target's logit
  if (CORTADO_THREAD == 0) in.losses[row] = device::logarithm(all.sum) * device::kLn2 + all.maximum - right;
  if (!in.differentiates) return;
  const float share = 1 / all.sum;
  UNROLL_BY(2) for (int at = CORTADO_THREAD * 8; at < in.classes; at += kGpuEntropyThreads * 8) {
    float x[8];
    device::read8(x, logits, at);
    UNROLL for (int i = 0; i < 8; ++i) {
      x[i] = device::relative(x[i], all.maximum) * share - (at + i == target ? 1.0f : 0.0f);
    }
    device::write8(logits, at, x);
  }
}

}  // namespace cortado::entropy
