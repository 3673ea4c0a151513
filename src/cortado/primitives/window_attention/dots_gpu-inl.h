// What the gradients of window attention need of every query beside the tiles: kernel_gpu.h says what.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/window_attention/kernel_gpu.h"

namespace cortado::window {

DEV void dots(const GpuDots& in) {
  const device::WarpRow row(in.batch, in.queries, in.heads);
  if (!row.there) return;
  float o[4], grad[4], dot = 0;
  row.read(o, in.o, in.value_size);
  row.read(grad, in.grad_o, in.value_size);
  UNROLL for (int i = 0; i < 4; ++i) dot += o[i] * grad[i];
  dot = device::sum_of_lanes(dot);
  if (row.lane) return;
  const long long place = (row.batch * in.queries + row.t) * in.heads + row.head;
  in.delta[place] = in.grad_lse ? dot - in.grad_lse[place] : dot;
  in.lse[place] = in.row_max[place] + device::logarithm(in.denominator[place]) * device::kLn2;
}

}  // namespace cortado::window
