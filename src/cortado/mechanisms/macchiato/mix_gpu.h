// One softmax over a window and the latents, on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::latent {

using cuda::GpuTimed;

// (first, p) = softmax(logits), the first of the L + 1 apart; its derivative
//   dlogits = p (dp - sum of p dp), over all L + 1.
struct GpuMixWeights {
  GpuTimed logits, p, grad_p, grad_logits;  // 16-bit [1,T,heads,.], without gaps; p and grad_p at multiples of 16 bytes
  float* first;                             // [B, T, heads]
  const float* grad_first;
  int tokens, heads, latents;  // L a multiple of 8 up to 128
};

// o = far + first near; dnear = first do, dfirst = near . do.
struct GpuMix {
  GpuTimed far, near, o, grad_o, grad_near;  // 16-bit [B,T,heads,V]
  const float* first;
  float* grad_first;
  int tokens, heads, values;
};

}  // namespace cortado::latent
