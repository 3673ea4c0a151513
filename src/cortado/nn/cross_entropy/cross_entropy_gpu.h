// The arguments of the cross-entropy's GPU kernel: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::entropy {

// losses[n] = log sum_i exp(z_ni) - z_nt, t = targets[n]. With `differentiates` the logits are overwritten by the
// loss's derivative by them, softmax(z_n) - onehot(t).
struct GpuCrossEntropy {
  void* logits;  // 16-bit [rows, classes]; classes is a multiple of 8
  const long long* targets;
  float* losses;
  int classes;
  int differentiates;
};

constexpr int kGpuEntropyThreads = 512;  // per block; a block has one row
constexpr int kGpuEntropyBytes = kGpuEntropyThreads / 32 * 8;

}  // namespace cortado::entropy
