// The delta scan's elementwise kernels, not its walks; see kernel_gpu.h.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/delta_scan/kernel_gpu.h"

namespace cortado::delta {

using namespace device;

DEV void store(const GpuStored& in) {
  const Row row(in.tokens, in.heads, in.values);
  float x[8];
  row.read(x, in.e, in.values);
  if (!row.there) return;
  const float beta = *row.of<const float>(in.beta);
  UNROLL for (int i = 0; i < 8; ++i) x[i] *= beta;
  row.write(in.u, in.values, x);
}

DEV void rest(const GpuRest& in) {
  const Row row(in.tokens, in.heads, in.keys > in.values ? in.keys : in.values);
  float e[8], dv[8], k[8], held[8], lost[8], gained[8];
  row.read(e, in.e, in.values);
  row.read(dv, in.dv, in.values);
  row.read(k, in.k, in.keys);
  row.read(held, in.held, in.keys);
  row.read(lost, in.lost, in.keys);
  row.read(gained, in.gained, in.keys);
  const float beta = row.there ? *row.of<const float>(in.beta) : 0.0f, dot = row.sum(dot8(e, dv));
  float dk[8];
  UNROLL for (int i = 0; i < 8; ++i) {
    gained[i] += dot * k[i] - lost[i] * in.inverse_scale;
    held[i] = held[i] * in.inverse_scale - beta * dot * k[i];
    dk[i] = beta * gained[i] - held[i];
  }
  row.write(in.dk, in.keys, dk);
  if (in.dk_gates.data) {
    UNROLL for (int i = 0; i < 8; ++i) dk[i] += 2 * held[i];
    row.write(in.dk_gates, in.keys, dk);
  }
  const float dbeta = row.sum(dot8(k, gained));
  if (row.there && row.piece == 0) in.dbeta[row.place] = dbeta;
}

}  // namespace cortado::delta
