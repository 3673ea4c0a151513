// One token of the RG-LRU on a GPU; see rg_lru_gpu.h. A lane has two channels of both gates; a warp sums over every
// eighth input.
#pragma once

#include "cortado/nn/rg_lru/rg_lru_gpu-inl.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::elementwise {

using device::rounded;
using device::short_number;

constexpr int kRgLruStepWarps = kRgLruStepThreads / 32;

// log(1 + e^x); if e^x is small, by the series of the inverse hyperbolic tangent.
DEV float softplus(float x) {
  if (x > 20) return x;
  const float e = device::exponential(x);
  if (e > 0.5f) return device::logarithm(1 + e) * device::kLn2;
  const float s = e * reciprocal(2 + e), squared = s * s;
  return 2 * s * (1 + squared * (1.0f / 3 + squared * (1.0f / 5 + squared * (1.0f / 7 + squared * (1.0f / 9)))));
}

struct RgLruStepPlace {
  int channel;  // within the head
  long long head, at, row;

  // The place of the block's channel number `own`.
  DEV RgLruStepPlace(const GpuRgLruStep& in, int own)
      : channel(blockIdx.x * kRgLruStepChannels + own),
        head(blockIdx.y),
        at(head * in.size + channel),
        row(device::times(blockIdx.z, in.heads) * in.size) {}
};

// Computes this warp's part of both products for two channels and writes it to `room` [warps][gate][channels].
DEV void rg_lru_step_products(const GpuRgLruStep& in, float* room) {
  const int lane = CORTADO_THREAD & 31, warp = CORTADO_THREAD >> 5;
  const RgLruStepPlace place(in, 2 * lane);
  Two r = {0, 0}, i = {0, 0};
  if (place.channel < in.size) {
    const long long matrix = place.head * in.size * in.size + place.channel;
    UNROLL_BY(8) for (int from = warp; from < in.size; from += kRgLruStepWarps) {
      const float x = short_number(in.x, place.row + place.head * in.size + from);
      const long long at = matrix + device::times(from, in.size);
      const u32 both_r = *reinterpret_cast<const u32*>(static_cast<const u16*>(in.r_weight) + at);
      const u32 both_i = *reinterpret_cast<const u32*>(static_cast<const u16*>(in.i_weight) + at);
      r.x[0] += x * device::unpack_low(both_r);
      r.x[1] += x * device::unpack_high(both_r);
      i.x[0] += x * device::unpack_low(both_i);
      i.x[1] += x * device::unpack_high(both_i);
    }
  }
  *reinterpret_cast<Two*>(room + (warp * 2) * kRgLruStepChannels + 2 * lane) = r;
  *reinterpret_cast<Two*>(room + (warp * 2 + 1) * kRgLruStepChannels + 2 * lane) = i;
}

DEV void rg_lru_step(const GpuRgLruStep& in) {
  auto* const room = reinterpret_cast<float*>(device::shared_memory());
  rg_lru_step_products(in, room);
  __syncthreads();
  const RgLruStepPlace place(in, CORTADO_THREAD);
  if (CORTADO_THREAD >= kRgLruStepChannels || place.channel >= in.size) return;
  float gates[2] = {};
  UNROLL for (int warp = 0; warp < kRgLruStepWarps; ++warp) {
    UNROLL for (int gate = 0; gate < 2; ++gate) {
      gates[gate] += room[(warp * 2 + gate) * kRgLruStepChannels + CORTADO_THREAD];
    }
  }
  const float open = sigmoid(rounded(rounded(gates[0]) + short_number(in.r_bias, place.at)));
  const float let = sigmoid(rounded(rounded(gates[1]) + short_number(in.i_bias, place.at)));
  const float log_a = -in.sharpness * open * softplus(short_number(in.lambda, place.at));
  const float keep = in.position[blockIdx.z] == 0 ? 1.0f : device::square_root(one_minus_exp(2 * log_a));
  const float b = keep * let * short_number(in.x, place.row + place.at);
  const float h = device::decay_of(log_a) * in.start[place.row + place.at] + b;
  in.h[place.row + place.at] = h;
  static_cast<u16*>(in.y)[place.row + place.at] = static_cast<u16>(device::pack(h, 0));
}

}  // namespace cortado::elementwise
