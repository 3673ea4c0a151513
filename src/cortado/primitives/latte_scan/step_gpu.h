// One token of Latte on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/token_gpu.h"

namespace cortado::latent {

using cuda::GpuToken;

// With the state (S, alpha, m) before it, latent by latent:
//   m' = max(m, theta), g = e^(m - m'), w = e^(theta - m'), alpha' = g alpha + w, S' = g S + w v^T
//   o = sum over the latents of p S' / alpha', p = softmax(query) or the query itself
// With `near` (Macchiato, eq. 15): the softmax has a state more, the first of the query's, whose values are near's.
struct GpuLatteStep {
  GpuToken query, theta, v, near;             // near: [B, heads, V], or none
  const float *state, *normalizer, *maximum;  // [B, state heads, L, V] and [B, state heads, L], or null: 0, 0, -inf
  float *last_state, *last_normalizer, *last_maximum;
  void* o;  // [B, heads, V], of v's type
  int heads, state_heads, latents, values;
  int softmax, short_o;
};

constexpr int kGpuStepValues = 32;          // of a block
constexpr int kGpuStepLatents = 128;        // at most
constexpr int kGpuStepBytes = 5 * 128 * 4;  // of shared memory

}  // namespace cortado::latent
