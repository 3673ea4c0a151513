// Joins the results of the parts of the keys; see kernel_gpu.h. A warp has one head of a query, a lane every 32nd
// value.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/window_attention/kernel_gpu.h"

namespace cortado::window {

using namespace device;

DEV void join_keys(const GpuAttentionJoin& in) {
  const long long all = static_cast<long long>(in.rows) * in.queries * in.heads;
  const long long place = static_cast<long long>(blockIdx.x) * (kGpuJoinThreads / 32) + (CORTADO_THREAD >> 5);
  const int lane = CORTADO_THREAD & 31;
  if (place >= all) return;
  float most = -infinity(), sum = 0;
  for (int part = 0; part < in.parts; ++part) {
    const float own = in.part_max[part * all + place];
    most = own > most ? own : most;
  }
  const float to = most == -infinity() ? 0.0f : most;
  float o[4] = {};
  for (int part = 0; part < in.parts; ++part) {
    const float factor = power(in.part_max[part * all + place] - to);
    sum += factor * in.part_sum[part * all + place];
    const float* from = in.part_o + (part * all + place) * in.value_size;
    UNROLL for (int j = 0; j < 4; ++j) o[j] += j * 32 + lane < in.value_size ? factor * from[j * 32 + lane] : 0.0f;
  }
  const int head = static_cast<int>(place % in.heads);
  const long long token = place / in.heads;  // counted over all rows
  u16* out = static_cast<u16*>(in.o.data) + token / in.queries * in.o.batch +
             times(static_cast<int>(token % in.queries), in.o.token) + head * in.o.head;
  const float share = sum > 0 ? 1 / sum : 0.0f;
  UNROLL for (int j = 0; j < 4; ++j) {
    if (j * 32 + lane < in.value_size) out[j * 32 + lane] = static_cast<u16>(pack(o[j] * share, 0));
  }
  if (lane) return;
  in.row_max[place] = most * kLn2;
  in.denominator[place] = sum > 0 ? sum : 1.0f;
  in.lse[place] = sum > 0 ? most * kLn2 + logarithm(sum) * kLn2 : -infinity();
}

}  // namespace cortado::window
