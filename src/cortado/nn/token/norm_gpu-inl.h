// An RMS norm of a few rows; see norm_gpu.h.
#pragma once

#include "cortado/nn/token/norm_gpu.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::token {

DEV void rms_norm(const GpuNorm& in) {
  const long long group = device::times(blockIdx.x, in.width);
  const long long place = (device::times(blockIdx.y, in.groups) + blockIdx.x) * in.width;
  float squares = 0;
  for (int at = CORTADO_THREAD * 8; at < in.width; at += kGpuNormThreads * 8) {
    float x[8];
    device::read8(x, in.x, place + at);
    if (in.branch) {
      float more[8];
      device::read8(more, in.branch, place + at);
      UNROLL for (int i = 0; i < 8; ++i) x[i] = device::rounded(x[i] + more[i]);
      device::write8(in.sum, place + at, x);
    }
    UNROLL for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
  }
  auto* const room = reinterpret_cast<float*>(device::shared_memory());
  const float all = device::sum_of_warp(device::total_of_warps(squares, room));
  const float scale = 1 / device::square_root(all / in.width + in.eps);
  const void* const whole = in.branch ? in.sum : in.x;  // a thread reads only what it has written itself
  for (int at = CORTADO_THREAD * 8; at < in.width; at += kGpuNormThreads * 8) {
    float x[8], weight[8];
    device::read8(x, whole, place + at);
    device::read8(weight, in.weight, group + at);
    UNROLL for (int i = 0; i < 8; ++i) x[i] = device::rounded(x[i] * scale) * weight[i];
    device::write8(in.y, place + at, x);
  }
}

}  // namespace cortado::token
