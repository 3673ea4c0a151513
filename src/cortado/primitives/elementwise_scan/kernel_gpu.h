// The elementwise scan's kernels on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
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

// From behind: D_t = dh_t + exp(log_a_{t+1}) D_{t+1}; db = D, dlog_a_t = D_t exp(log_a_t) h_{t-1}, dh_0 = exp(log_a_1) D_1.
// `times` go the other way than the scan's, whose `next` is 1, or in reverse -1.
struct GpuScanGradient {
  GpuTimes times;
  GpuChannels log_a, h, grad_h, grad_log_a, grad_b;
  const float *initial, *grad_last;
  float* grad_initial;
  int next;
};

// Of scan_stream and scan_gradient_stream, whose blocks have all of a row's time: channels and tokens of a stage.
constexpr int kGpuStreamThreads = 64, kGpuStreamChannels = 32, kGpuStreamTokens = 16, kGpuStreamStages = 8;
constexpr int gpu_stream_bytes(int tensors) {
  return kGpuStreamStages * tensors * kGpuStreamTokens * kGpuStreamChannels * 4;
}

}  // namespace cortado::elementwise
