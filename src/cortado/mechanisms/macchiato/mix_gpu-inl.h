// One softmax over a window and the latents, on a GPU: mix_gpu.h says what.
#pragma once

#include "cortado/mechanisms/macchiato/mix_gpu.h"
#include "cortado/primitives/cuda/rows.h"

namespace cortado::latent {

using namespace device;

// Rows of L + 1 numbers lie in memory without regard to 16 bytes: a block's all come, or go, as one piece of memory, by way
// of shared memory.
struct MixRows {
  const GpuMixWeights& in;
  u16* shared;
  long long first;  // of the block's numbers, and how many of them there are
  int count;

  DEV explicit MixRows(const GpuMixWeights& given) : in(given), shared(reinterpret_cast<u16*>(shared_memory())) {
    const int each = rows_of_block(in.latents), begin = blockIdx.x * each, all = in.tokens * in.heads;
    first = static_cast<long long>(begin) * (in.latents + 1);
    count = (all - begin < each ? all - begin : each) * (in.latents + 1);
  }
  DEV u16* row() const { return shared + CORTADO_THREAD / row_lanes(in.latents) * (in.latents + 1); }

  template <typename Move>
  DEV void pieces(const Move& move) const {
    for (int i = CORTADO_THREAD * 8; i < count; i += kRowThreads * 8) move(i);
  }
  DEV void come(const u16* from) const {
    pieces([&](int i) {
      if (i + 8 <= count) {
        *reinterpret_cast<Four*>(shared + i) = *reinterpret_cast<const Four*>(from + first + i);
      } else {
        for (int x = i; x < count; ++x) shared[x] = from[first + x];
      }
    });
    __syncthreads();
  }
  DEV void go(u16* to) const {
    __syncthreads();
    pieces([&](int i) {
      if (i + 8 <= count) {
        *reinterpret_cast<Four*>(to + first + i) = *reinterpret_cast<const Four*>(shared + i);
      } else {
        for (int x = i; x < count; ++x) to[first + x] = shared[x];
      }
    });
  }
};

DEV void mix_weights(const GpuMixWeights& in) {
  const MixRows rows(in);
  rows.come(static_cast<const u16*>(in.logits.data));
  const Row row(in.tokens, in.heads, in.latents);
  const bool there = row.there && row.piece * 8 < in.latents;
  const u16* logits = rows.row();
  float x[8], window = row.there ? unpack_low(logits[0]) : 0.0f, largest = window, sum = 0;
  UNROLL for (int i = 0; i < 8; ++i) {
    x[i] = there ? unpack_low(logits[1 + row.piece * 8 + i]) : -infinity();
    largest = x[i] > largest ? x[i] : largest;
  }
  largest = row.largest(largest);
  UNROLL for (int i = 0; i < 8; ++i) sum += x[i] = there ? exponential(x[i] - largest) : 0.0f;
  window = exponential(window - largest);
  const float share = reciprocal(row.sum(sum) + window);
  UNROLL for (int i = 0; i < 8; ++i) x[i] *= share;
  row.write(in.p, in.latents, x);
  if (row.there && row.piece == 0) in.first[row.place] = window * share;
}

DEV void mix_weights_gradient(const GpuMixWeights& in) {
  const MixRows rows(in);
  const Row row(in.tokens, in.heads, in.latents);
  float p[8], grad[8];
  row.read(p, in.p, in.latents);
  row.read(grad, in.grad_p, in.latents);
  const float first = row.there ? in.first[row.place] : 0.0f, grad_first = row.there ? in.grad_first[row.place] : 0.0f;
  const float dot = row.sum(dot8(p, grad)) + first * grad_first;
  u16* to = rows.row();
  if (row.there && row.piece * 8 < in.latents) {
    UNROLL for (int i = 0; i < 8; ++i) to[1 + row.piece * 8 + i] = static_cast<u16>(pack(p[i] * (grad[i] - dot), 0));
    if (row.piece == 0) to[0] = static_cast<u16>(pack(first * (grad_first - dot), 0));
  }
  rows.go(static_cast<u16*>(in.grad_logits.data));
}

DEV void mix(const GpuMix& in) {
  const Row row(in.tokens, in.heads, in.values);
  float far[8], near[8];
  row.read(far, in.far, in.values);
  row.read(near, in.near, in.values);
  const float first = row.there ? in.first[row.place] : 0.0f;
  UNROLL for (int i = 0; i < 8; ++i) far[i] += first * near[i];
  row.write(in.o, in.values, far);
}

DEV void mix_gradient(const GpuMix& in) {
  const Row row(in.tokens, in.heads, in.values);
  float grad[8], near[8];
  row.read(grad, in.grad_o, in.values);
  row.read(near, in.near, in.values);
  const float first = row.there ? in.first[row.place] : 0.0f, dot = row.sum(dot8(grad, near));
  UNROLL for (int i = 0; i < 8; ++i) grad[i] *= first;
  row.write(in.grad_near, in.values, grad);
  if (row.there && row.piece == 0) in.grad_first[row.place] = dot;
}

}  // namespace cortado::latent
