// The arguments of the elementwise scan's GPU kernels: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/elementwise_scan/timewise_gpu.h"

namespace cortado::elementwise {

using timewise::GpuChannels, timewise::GpuTimes;

// h_t = exp(log_a_t) h_{t-1} + b_t; initial and last [rows, channels], or null.
struct GpuScan {
  GpuTimes times;
  GpuChannels log_a, b, h;
  const float* initial;
  float* last;
};

// Backward: D_t = dh_t + exp(log_a_{t+1}) D_{t+1}; db = D, dlog_a_t = D_t exp(log_a_t) h_{t-1}, dh_0 = exp(log_a_1)
// D_1. `times` run against the scan's direction; `next` is 1, or -1 for a reverse scan.
struct GpuScanGradient {
  GpuTimes times;
  GpuChannels log_a, h, grad_h, grad_log_a, grad_b;
  const float *initial, *grad_last;
  float* grad_initial;
  int next;
};

// scan_stream and scan_gradient_stream, whose blocks each cover all time of a row: channels and tokens per stage.
constexpr int kGpuStreamThreads = 64, kGpuStreamChannels = 32, kGpuStreamTokens = 16, kGpuStreamStages = 8;
constexpr int gpu_stream_bytes(int tensors) {
  return kGpuStreamStages * tensors * kGpuStreamTokens * kGpuStreamChannels * 4;
}

}  // namespace cortado::elementwise
