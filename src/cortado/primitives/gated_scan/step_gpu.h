// The arguments of a scan's single-token GPU kernel: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/token_gpu.h"

namespace cortado::gated {

using cuda::GpuToken;

// S' = decay S + k u^T with u = v, or with beta u = beta (v - (decay S)^T k). Along the keys o = factor S'^T q, along the
// values o = factor S' q; with a bonus per key, o = factor (S + diag(bonus) k v^T)^T q.
struct GpuStep {
  GpuToken q, k, v, decay, beta, bonus;  // decay: log per head or key, or with `factors` the factor itself
  const float* initial;                  // [B, state heads, K, V] or null
  float* last;
  void* o;  // [B, heads, V or K], of v's type
  int heads, state_heads, keys, values;
  int read_values, decay_of_keys, factors, short_o;
  float factor;
};

constexpr int kGpuStepPiece = 32;                        // values per block; keys if read along the values
constexpr int kGpuStepBytes = 5 * 128 * 4;               // of shared memory
constexpr int kGpuStepKeys = 128, kGpuStepValues = 128;  // at most: K if the sum runs over keys, V if over values

}  // namespace cortado::gated
