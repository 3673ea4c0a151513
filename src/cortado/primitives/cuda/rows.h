// Helpers for kernels that process tokens and heads elementwise. A row is one head of one token. Eight or sixteen lanes
// share a row, each with eight consecutive 16-bit numbers. Read by NVRTC and by the host.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/cuda/timed.h"

namespace device {

using cortado::cuda::kRowThreads, cortado::cuda::row_lanes, cortado::cuda::rows_of_block;

// This lane's row. Block (x, y) has rows of batch row y.
struct Row {
  int piece, lanes, head, heads, t;
  long long batch, place;  // place: index in [B, T, heads]
  bool there;

  // `width`: the width of the widest tensor.
  DEV Row(int tokens, int all_heads, int width)
      : piece(CORTADO_THREAD & (row_lanes(width) - 1)), lanes(row_lanes(width)), heads(all_heads), batch(blockIdx.y) {
    const int shift = lanes == 8 ? 3 : 4;
    const u32 number = blockIdx.x * (kRowThreads >> shift) + (CORTADO_THREAD >> shift);
    t = static_cast<int>(number / static_cast<u32>(heads));
    head = static_cast<int>(number) - t * heads;
    there = t < tokens;
    place = batch * tokens * heads + number;
  }

  template <typename T>
  DEV T* of(const cortado::cuda::GpuTimed& x) const {
    return static_cast<T*>(x.data) + batch * x.batch + times(t, x.token) +
           (x.heads == heads ? head : head / (heads / x.heads)) * x.head;
  }

  // Reads this lane's eight numbers, 0 beyond the width. All lanes of a warp must call it, also those without a row.
  DEV void read(float* x, const cortado::cuda::GpuTimed& from, int width) const {
    Four both = {0, 0, 0, 0};
    if (there && piece * 8 < width) both = *reinterpret_cast<const Four*>(of<const u16>(from) + piece * 8);
    unpack8(x, both);
  }
  DEV void write(const cortado::cuda::GpuTimed& to, int width, const float* x) const {
    if (!there || piece * 8 >= width) return;
    write8(of<u16>(to), piece * 8, x);
  }

  // Reductions over the row's lanes.
  DEV float sum(float x) const {
    UNROLL for (int far = 1; far < 8; far *= 2) x += __shfl_xor_sync(~0u, x, far);
    const float other = __shfl_xor_sync(~0u, x, 8);
    return lanes == 16 ? x + other : x;
  }
  DEV float largest(float x) const {
    UNROLL for (int far = 1; far < 16; far *= 2) {
      const float other = __shfl_xor_sync(~0u, x, far);
      if (far < lanes) x = other > x ? other : x;
    }
    return x;
  }
};

DEV float dot8(const float* x, const float* y) {
  float sum = 0;
  UNROLL for (int i = 0; i < 8; ++i) sum += x[i] * y[i];
  return sum;
}

}  // namespace device
