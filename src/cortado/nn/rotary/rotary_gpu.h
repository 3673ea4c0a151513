// The arguments of the rotary positions' GPU kernels: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::window {

// Rotates the first 2 half channels of every head by its token's angles and copies the others. A pair (x_i, x_{i+half})
// becomes (c x_i - s x_{i+half}, c x_{i+half} + s x_i), with s times `direction`: 1, or -1 for the backward.
struct GpuRotary {
  cuda::GpuTimed x, y;             // 16-bit [B,T,heads,width]
  const float *cos, *sin;          // [B|1, T, half]
  long long table;                 // numbers per batch row's table; 0: one table for all rows
  int tokens, heads, width, half;  // width and half are multiples of 8, width up to 128
  float direction;
};

// Rotates one token's queries and keys; computes the angles itself, position times frequency, in float64. cos and sin
// are multiplied by `factor`.
struct GpuTokenRotary {
  cuda::GpuTimed q, k, turned_q, turned_k;  // 16-bit [B,1,heads,width]
  const double* frequencies;                // [half]
  const long long* positions;               // [B]
  int width, half;
  float factor;
};

}  // namespace cortado::window
