// Rotary positions on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::window {

// The first 2 half channels of every head turned by its token's angles, the others copied: pairs (i, i + half) become
// (c x_i - s x_{i+half}, c x_{i+half} + s x_i), s times `direction`, 1 or, for the way back, -1.
struct GpuRotary {
  cuda::GpuTimed x, y;             // 16-bit [B,T,heads,width]
  const float *cos, *sin;          // [B|1, T, half]
  long long table;                 // numbers of a batch row's table; 0: one for all
  int tokens, heads, width, half;  // width and half are multiples of 8, width up to 128
  float direction;
};

// The same of one token's queries and keys, by angles that are made here: position times frequency, in float64.
struct GpuTokenRotary {
  cuda::GpuTimed q, k, turned_q, turned_k;  // 16-bit [B,1,heads,width]
  const double* frequencies;                // [half]
  const long long* positions;               // [B]
  int width, half;
};

}  // namespace cortado::window
