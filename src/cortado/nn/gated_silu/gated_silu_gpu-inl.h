// The gated SiLU on a GPU; see gated_silu_gpu.h.
#pragma once

#include "cortado/nn/gated_silu/gated_silu_gpu.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::fused {

DEV long long silu_place() { return (static_cast<long long>(blockIdx.x) * kGpuSiluThreads + CORTADO_THREAD) * 8; }

DEV void gated_silu(const GpuGatedSilu& in) {
  const long long at = silu_place();
  if (at >= in.count) return;
  float gate[8], up[8];
  device::read8(gate, in.gate, at);
  device::read8(up, in.up, at);
  UNROLL for (int i = 0; i < 8; ++i) up[i] *= device::rounded(gate[i] * device::sigmoid(gate[i]));
  device::write8(in.y, at, up);
}

DEV void gated_silu_gradient(const GpuGatedSilu& in) {
  const long long at = silu_place();
  if (at >= in.count) return;
  float gate[8], up[8], dy[8];
  device::read8(gate, in.gate, at);
  device::read8(up, in.up, at);
  device::read8(dy, in.grad_y, at);
  UNROLL for (int i = 0; i < 8; ++i) {
    const float s = device::sigmoid(gate[i]), silu = gate[i] * s;
    gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    up[i] = dy[i] * silu;
  }
  device::write8(in.grad_gate, at, gate);
  device::write8(in.grad_up, at, up);
}

}  // namespace cortado::fused
