// The kernel of Mamba's selective scan: float32 on the CPU, forward and backward. Does not include torch.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::mamba_kernel {

using kernels::Channels;
using kernels::Parallel;

// h_t = exp(Δ_t A) ⊙ h_{t-1} + Δ_t x_t ⊗ B_t, y_t = h_t C_t, for E channels of N states each. The states are not
// stored, except for one in kChunk tokens during the backward pass.
struct SelectiveScan {
  int64_t batch, tokens, channels, states;
  Channels x, step;       // [B,T,E]
  const float* a;         // [E,N]
  Channels b, c;          // [B,T,N]
  const float* start;     // [B,E,N]
  Channels y = {};        // [B,T,E]
  float* last = nullptr;  // [B,E,N]

  // Backward: reads everything except y and last. da comes per row; db and dc come in parts, which the caller sums.
  Channels dy = {};
  const float* dlast = nullptr;
  Channels dx = {}, dstep = {};
  float *da = nullptr, *dstart = nullptr;          // [B,E,N]
  float *db_parts = nullptr, *dc_parts = nullptr;  // [B, parts(channels), T, N]
};

// Channels per task of the backward pass. Independent of the number of threads and of the vectors' length, so that
// results do not depend on them.
constexpr int64_t part_channels(int64_t channels) {
  constexpr int64_t kParts = 8, kWhole = 16;
  return ((channels + kParts - 1) / kParts + kWhole - 1) / kWhole * kWhole;
}
constexpr int64_t parts(int64_t channels) { return (channels + part_channels(channels) - 1) / part_channels(channels); }

void selective_scan(const SelectiveScan& call, const Parallel& parallel);
void selective_scan_backward(const SelectiveScan& call, const Parallel& parallel);

}  // namespace cortado::mamba_kernel
