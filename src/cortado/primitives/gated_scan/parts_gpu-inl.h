// Joins parts of time; see kernel_gpu.h.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

// One thread per number of a row's and head's state walks through the parts.
DEV void join_parts(const GpuJoin& join) {
  const int i = blockIdx.x * kGpuThreads + CORTADO_THREAD, head = blockIdx.y % join.heads,
            row = blockIdx.y / join.heads;
  if (i >= join.numbers) return;
  const int channel = join.kept_width == 1 ? 0 : join.on_keys ? i / join.values : i % join.values;
  const long long whole = (static_cast<long long>(row) * join.heads + head) * join.numbers + i;
  float state = join.initial ? join.initial[whole] * join.initial_factor : 0.0f;
  for (int part = 0; part < join.parts; ++part) {
    const long long place = (static_cast<long long>(row) * join.parts + part) * join.heads + head;
    float& there = join.states[place * join.numbers + i];
    const float left = there;
    there = state;
    state = join.kept[place * join.kept_width + channel] * state + left;
  }
  if (join.last) join.last[whole] = state * join.last_factor;
}

}  // namespace cortado::gated
