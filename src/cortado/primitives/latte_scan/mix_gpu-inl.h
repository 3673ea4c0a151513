// One softmax over a window and the latents, on a GPU: mix_gpu.h says what. A warp has a token of a head.
#pragma once

#include "cortado/primitives/cuda/rows.h"
#include "cortado/primitives/latte_scan/mix_gpu.h"

namespace cortado::latent {

using namespace device;

constexpr int kMixEach = 5;  // numbers of 1 + 128 that a lane has, 32 apart

DEV long long mix_place(const WarpRow& row, int tokens) { return (row.batch * tokens + row.t) * row.heads + row.head; }

DEV void mix_weights(const GpuMixWeights& in) {
  const WarpRow row(in.batch, in.tokens, in.heads);
  if (!row.there) return;
  const u16* logits = row.of<const u16>(in.logits);
  float x[kMixEach], largest = -infinity(), sum = 0;
  UNROLL for (int i = 0; i < kMixEach; ++i) {
    const int number = row.lane + 32 * i;
    x[i] = number <= in.latents ? unpack_low(logits[number]) : -infinity();
    largest = x[i] > largest ? x[i] : largest;
  }
  largest = largest_of_lanes(largest);
  UNROLL for (int i = 0; i < kMixEach; ++i) sum += x[i] = exponential(x[i] - largest);
  const float share = reciprocal(sum_of_lanes(sum));
  u16* p = row.of<u16>(in.p);
  if (row.lane == 0) in.first[mix_place(row, in.tokens)] = x[0] * share;
  UNROLL for (int i = 0; i < kMixEach; ++i) {
    const int number = row.lane + 32 * i;
    if (number > 0 && number <= in.latents) p[number - 1] = static_cast<u16>(pack(x[i] * share, 0));
  }
}

DEV void mix_weights_gradient(const GpuMixWeights& in) {
  const WarpRow row(in.batch, in.tokens, in.heads);
  if (!row.there) return;
  const u16 *p = row.of<const u16>(in.p), *grad_p = row.of<const u16>(in.grad_p);
  const long long place = mix_place(row, in.tokens);
  float weights[kMixEach], grads[kMixEach], dot = 0;
  UNROLL for (int i = 0; i < kMixEach; ++i) {
    const int number = row.lane + 32 * i;
    const bool there = number > 0 && number <= in.latents;
    weights[i] = number == 0 ? in.first[place] : there ? unpack_low(p[number - 1]) : 0.0f;
    grads[i] = number == 0 ? in.grad_first[place] : there ? unpack_low(grad_p[number - 1]) : 0.0f;
    dot += weights[i] * grads[i];
  }
  dot = sum_of_lanes(dot);
  u16* to = row.of<u16>(in.grad_logits);
  UNROLL for (int i = 0; i < kMixEach; ++i) {
    const int number = row.lane + 32 * i;
    if (number <= in.latents) to[number] = static_cast<u16>(pack(weights[i] * (grads[i] - dot), 0));
  }
}

DEV void mix(const GpuMix& in) {
  const WarpRow row(in.batch, in.tokens, in.heads);
  if (!row.there) return;
  float far[4], near[4];
  row.read(far, in.far, in.values);
  row.read(near, in.near, in.values);
  const float first = in.first[mix_place(row, in.tokens)];
  UNROLL for (int i = 0; i < 4; ++i) far[i] += first * near[i];
  row.write(in.o, in.values, far);
}

DEV void mix_gradient(const GpuMix& in) {
  const WarpRow row(in.batch, in.tokens, in.heads);
  if (!row.there) return;
  float grad[4], near[4], dot = 0;
  row.read(grad, in.grad_o, in.values);
  row.read(near, in.near, in.values);
  const long long place = mix_place(row, in.tokens);
  const float first = in.first[place];
  UNROLL for (int i = 0; i < 4; ++i) {
    dot += grad[i] * near[i];
    grad[i] *= first;
  }
  row.write(in.grad_near, in.values, grad);
  dot = sum_of_lanes(dot);
  if (row.lane == 0) in.grad_first[place] = dot;
}

}  // namespace cortado::latent
