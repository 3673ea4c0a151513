// The short convolution's kernels on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::convolution {

// [B,T,D], channels without gaps; strides in numbers. Packed: B = 1.
struct GpuRows {
  void* data;
  long long batch, token;
};

// [D] or [D, taps] as they lie: float32, or of x's type of 16 bits; strides in numbers.
struct GpuTaps {
  const void* data;
  long long channel, tap;
  int is_short;
};

// Of y_t = act(sum of weight[i] x_{t - taps + 1 + i} + bias); what stands before a row's first token is its initial
// state. x, y and their gradients are of one type, float32 or of 16 bits; states and sums float32. D is even.
struct GpuConv {
  GpuRows x, y, grad_y, grad_x;
  GpuTaps weight, bias;     // bias: or no data
  const float* initial;     // [rows, taps - 1, D] or null
  float* final_state;       // the same
  const float* grad_final;  // the same, or null
  float* grad_initial;      // the same
  float* sums;              // [rows, parts, taps + 1, D]: of the gradients of weight and bias, of each part
  const long long* bounds;  // packed, or null
  int rows, tokens, channels, parts, silu;
};

constexpr int kGpuConvThreads = 128, kGpuConvTokens = 64;  // of a part
constexpr int kGpuMostTaps = 8;

}  // namespace cortado::convolution
