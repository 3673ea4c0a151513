// The arguments of Latte's single-token GPU kernel: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/token_gpu.h"

namespace cortado::latent {

using cuda::GpuToken;

// Updates the state (S, alpha, m) per latent:
//   m' = max(m, theta), g = e^(m - m'), w = e^(theta - m'), alpha' = g alpha + w, S' = g S + w v^T
//   o = sum over the latents of p S' / alpha', p = softmax(query) or the query itself
// With `near` (Macchiato, eq. 15) the softmax has one more state, the query's first entry, whose value is `near`.
struct GpuLatteStep {
  GpuToken query, theta, v, near;             // near: [B, heads, V], or none
  const float *state, *normalizer, *maximum;  // [B, state heads, L, V] and [B, state heads, L], or null: 0, 0, -inf
  float *last_state, *last_normalizer, *last_maximum;
  void* o;  // [B, heads, V], in v's type
  int heads, state_heads, latents, values;
  int softmax, short_o;
};

constexpr int kGpuStepValues = 32;          // values per block
constexpr int kGpuStepLatents = 128;        // largest L
constexpr int kGpuStepBytes = 5 * 128 * 4;  // of shared memory

}  // namespace cortado::latent
