// Computes delta, the number per query that the gradients need; see kernel_gpu.h.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/window_attention/kernel_gpu.h"

namespace cortado::window {

DEV void dots(const GpuDots& in) {
  const device::Row row(in.queries, in.heads, in.value_size);
  float o[8], grad[8];
  row.read(o, in.o, in.value_size);
  row.read(grad, in.grad_o, in.value_size);
  const float dot = row.sum(device::dot8(o, grad));
  if (!row.there || row.piece) return;
  in.delta[row.place] = in.grad_lse ? dot - in.grad_lse[row.place] : dot;
  in.lse[row.place] = in.row_max[row.place] + device::logarithm(in.denominator[row.place]) * device::kLn2;
}

}  // namespace cortado::window
