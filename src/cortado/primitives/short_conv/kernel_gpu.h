// The arguments of the short convolution's GPU kernels: sizes, strides and pointers. Read by C++ and by NVRTC: nothing
// is included.
#pragma once

namespace cortado::convolution {

// [B,T,D] with contiguous channels; strides in elements. Packed: B = 1.
struct GpuRows {
  void* data;
  long long batch, token;
};

// [D] or [D, taps] in any layout, float32 or of x's 16-bit type; strides in elements.
struct GpuTaps {
  const void* data;
  long long channel, tap;
  int is_short;
};

// y_t = act(sum of weight[i] x_{t - taps + 1 + i} + bias); tokens before a row's first one come from its initial state.
// x, y and their gradients share one type, float32 or 16-bit; states and sums are float32. D is even.
struct GpuConv {
  GpuRows x, y, grad_y, grad_x;
  GpuTaps weight, bias;     // bias: data null if none
  const float* initial;     // [rows, taps - 1, D] or null
  float* final_state;       // [rows, taps - 1, D]
  const float* grad_final;  // [rows, taps - 1, D] or null
  float* grad_initial;      // [rows, taps - 1, D]
  float* sums;              // [rows, parts, taps + 1, D]: each part's gradients of weight and bias
  const long long* bounds;  // packed, or null
  int rows, tokens, channels, parts, silu;
};

constexpr int kGpuConvThreads = 128, kGpuConvTokens = 64;  // kGpuConvTokens: tokens per part
constexpr int kGpuMostTaps = 8;

}  // namespace cortado::convolution
