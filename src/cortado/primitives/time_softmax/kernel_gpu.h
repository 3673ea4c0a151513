// The arguments of the softmax over time's GPU kernels: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/elementwise_scan/timewise_gpu.h"

namespace cortado::softmax {

using timewise::GpuChannels, timewise::GpuTimes;

// m_t = max(m_{t-1}, theta_t); keys exp(theta_t - m_t), gate m_{t-1} - m_t, maximum m_t, or 0 where m_t is -inf;
// normalizer alpha_t = exp(gate) alpha_{t-1} + keys. States [rows, channels]; null: -inf and 0.
struct GpuSoftmax {
  GpuTimes times;
  GpuChannels theta, keys, gate, maximum, normalizer;
  const float *initial_maximum, *initial_normalizer;
  float *last_maximum, *last_normalizer;
};

}  // namespace cortado::softmax
