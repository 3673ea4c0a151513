// Latte's kernels except its walks: joining parts of time, and the derivative of the softmax over the latents.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/latte_scan/kernel_gpu.h"

namespace cortado::latent {

using namespace device;

// One thread per number of a row's and head's state walks through the parts; threads of the first value (or key) also
// join the sums.
DEV void join_parts(const GpuLatteJoin& join) {
  const int i = blockIdx.x * gated::kGpuThreads + CORTADO_THREAD, numbers = join.keys * join.values;
  const int head = blockIdx.y % join.heads, row = blockIdx.y / join.heads;
  if (i >= numbers) return;
  const int latent = join.across ? i % join.values : i / join.values;
  const bool first = join.across ? i < join.values : i % join.values == 0;
  const long long whole = static_cast<long long>(row) * join.heads + head;
  const long long of_sums = whole * join.latents + latent;
  float state = join.initial ? join.initial[whole * numbers + i] : 0.0f;
  float sum = join.initial_sum ? join.initial_sum[of_sums] : 0.0f;
  float maximum = join.initial_maximum ? join.initial_maximum[of_sums] : -infinity();
  for (int part = 0; part < join.parts; ++part) {
    const long long place = (static_cast<long long>(row) * join.parts + part) * join.heads + head;
    float* there = join.states + place * numbers + i;
    const float left = *there, own_sum = join.sums[place * join.latents + latent],
                own = join.maxima[place * join.latents + latent];
    *there = state;
    const float to = join.reverse ? (own == -infinity() ? maximum : own) : (maximum > own ? maximum : own);
    const float before = join.reverse && maximum != -infinity() ? exponential(to - maximum) : relative(maximum, to);
    const float mine = join.reverse ? 1.0f : relative(own, to);
    if (first) {
      join.begin_sums[place * join.latents + latent] = sum;
      join.begin_maxima[place * join.latents + latent] = maximum;
    }
    state = before * state + mine * left;
    sum = before * sum + mine * own_sum;
    maximum = to;
  }
  if (join.last) join.last[whole * numbers + i] = state;
  if (first && join.last_sum) join.last_sum[of_sums] = sum;
  if (first && join.last_maximum) join.last_maximum[of_sums] = maximum;
}

DEV void query_gradient(const GpuQueryGradient& in) {
  const Row row(in.tokens, in.heads, in.latents);
  float p[8], w[8], sum = 0;
  row.read(p, in.query, in.latents);
  row.read(w, in.weights, in.latents);
  const bool there = row.piece * 8 < in.latents;
  float largest = there ? p[0] : -infinity();
  UNROLL for (int i = 1; i < 8; ++i) largest = there && p[i] > largest ? p[i] : largest;
  largest = row.largest(largest);
  UNROLL for (int i = 0; i < 8; ++i) sum += p[i] = there ? exponential(p[i] - largest) : 0.0f;
  const float share = reciprocal(row.sum(sum)), dot = row.sum(dot8(p, w)) * share;
  UNROLL for (int i = 0; i < 8; ++i) {
    p[i] *= share;
    w[i] = p[i] * (w[i] - dot);
  }
  row.write(in.p, in.latents, p);
  row.write(in.gradient, in.latents, w);
}

}  // namespace cortado::latent
