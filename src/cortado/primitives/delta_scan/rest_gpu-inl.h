// What is beside the delta scan's walks on a GPU, number by number: kernel_gpu.h says what.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/delta_scan/kernel_gpu.h"

namespace cortado::delta {

using namespace device;

DEV void store(const GpuStored& in) {
  const WarpRow row(in.batch, in.tokens, in.heads);
  if (!row.there) return;
  float x[4];
  row.read(x, in.e, in.values);
  const float beta = *row.of<const float>(in.beta);
  UNROLL for (int i = 0; i < 4; ++i) x[i] *= beta;
  row.write(in.u, in.values, x);
}

DEV void rest(const GpuRest& in) {
  const WarpRow row(in.batch, in.tokens, in.heads);
  if (!row.there) return;
  float e[4], dv[4], dot = 0;
  row.read(e, in.e, in.values);
  row.read(dv, in.dv, in.values);
  UNROLL for (int i = 0; i < 4; ++i) dot += e[i] * dv[i];
  dot = sum_of_lanes(dot);
  float k[4], held[4], lost[4], gained[4], dbeta = 0;
  row.read(k, in.k, in.keys);
  row.read(held, in.held, in.keys);
  row.read(lost, in.lost, in.keys);
  row.read(gained, in.gained, in.keys);
  const float beta = *row.of<const float>(in.beta);
  UNROLL for (int i = 0; i < 4; ++i) {
    const float answer = gained[i] - lost[i] * in.inverse_scale + dot * k[i];
    dbeta += k[i] * answer;
    held[i] = beta * (answer + dot * k[i]) - held[i] * in.inverse_scale;
  }
  row.write(in.dk, in.keys, held);
  dbeta = sum_of_lanes(dbeta);
  if (row.lane == 0) in.dbeta[(row.batch * in.tokens + row.t) * in.heads + row.head] = dbeta;
}

}  // namespace cortado::delta
