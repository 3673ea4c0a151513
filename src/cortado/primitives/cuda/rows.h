// Kernels in which a warp has one token of one head, and a lane two numbers of each 64. Read by NVRTC and by the host.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/cuda/timed.h"

namespace device {

constexpr int kRowWarps = 8;  // of a block

struct WarpRow {
  int lane, head, heads;
  long long batch, t;
  bool there;

  DEV WarpRow(int batches, int tokens, int all_heads) : lane(CORTADO_THREAD & 31), heads(all_heads) {
    const long long number = static_cast<long long>(blockIdx.x) * kRowWarps + CORTADO_THREAD / 32;
    const long long token = number / heads;
    head = static_cast<int>(number % heads);
    batch = token / tokens;
    t = token % tokens;
    there = batch < batches;
  }

  template <typename T>
  DEV T* of(const cortado::cuda::GpuTimed& x) const {
    return static_cast<T*>(x.data) + batch * x.batch + t * x.token + head / (heads / x.heads) * x.head;
  }

  // This lane's numbers of a row of 16-bit ones; 0 where there are none.
  DEV void read(float* x, const cortado::cuda::GpuTimed& from, int width) const {
    const u32* pairs = reinterpret_cast<const u32*>(of<u16>(from));
    UNROLL for (int i = 0; i < 2; ++i) {
      const u32 both = 2 * (lane + 32 * i) < width ? pairs[lane + 32 * i] : 0;
      x[2 * i] = unpack_low(both);
      x[2 * i + 1] = unpack_high(both);
    }
  }
  DEV void write(const cortado::cuda::GpuTimed& to, int width, const float* x) const {
    UNROLL for (int i = 0; i < 2; ++i) {
      if (2 * (lane + 32 * i) < width) reinterpret_cast<u32*>(of<u16>(to))[lane + 32 * i] = pack(x[2 * i], x[2 * i + 1]);
    }
  }
};

DEV float sum_of_lanes(float x) {
  UNROLL for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(~0u, x, far);
  return x;
}
DEV float largest_of_lanes(float x) {
  UNROLL for (int far = 16; far > 0; far /= 2) {
    const float other = __shfl_xor_sync(~0u, x, far);
    x = other > x ? other : x;
  }
  return x;
}

}  // namespace device
