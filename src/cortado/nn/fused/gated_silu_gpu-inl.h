// The gated SiLU on a GPU: gated_silu_gpu.h says what.
#pragma once

#include "cortado/nn/fused/gated_silu_gpu.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::fused {

DEV long long silu_place() { return (static_cast<long long>(blockIdx.x) * kGpuSiluThreads + CORTADO_THREAD) * 8; }
DEV void read_eight(float* x, const void* from, long long at) {
  device::unpack8(x, *reinterpret_cast<const device::Four*>(static_cast<const u16*>(from) + at));
}
DEV void write_eight(void* to, long long at, const float* x) {
  *reinterpret_cast<device::Four*>(static_cast<u16*>(to) + at) = device::pack8(x);
}
DEV float sigmoid(float x) { return device::reciprocal(1 + device::exponential(-x)); }

DEV void gated_silu(const GpuGatedSilu& in) {
  const long long at = silu_place();
  if (at >= in.count) return;
  float gate[8], up[8];
  read_eight(gate, in.gate, at);
  read_eight(up, in.up, at);
  UNROLL for (int i = 0; i < 8; ++i) up[i] *= device::rounded(gate[i] * sigmoid(gate[i]));
  write_eight(in.y, at, up);
}

DEV void gated_silu_gradient(const GpuGatedSilu& in) {
  const long long at = silu_place();
  if (at >= in.count) return;
  float gate[8], up[8], dy[8];
  read_eight(gate, in.gate, at);
  read_eight(up, in.up, at);
  read_eight(dy, in.grad_y, at);
  UNROLL for (int i = 0; i < 8; ++i) {
    const float s = sigmoid(gate[i]), silu = gate[i] * s;
    gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    up[i] = dy[i] * silu;
  }
  write_eight(in.grad_gate, at, gate);
  write_eight(in.grad_up, at, up);
}

}  // namespace cortado::fused
