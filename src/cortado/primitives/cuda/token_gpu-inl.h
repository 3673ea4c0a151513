// Shared by single-token kernels: numbers of either type, and sums over a block of four warps.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/cuda/token_gpu.h"

namespace device {

using cortado::cuda::GpuToken;

// short_number: reads a 16-bit number. rounded: x rounded to 16 bits.
DEV float short_number(const void* from, long long at) { return unpack_low(static_cast<const u16*>(from)[at]); }
DEV float rounded(float x) { return unpack_low(pack(x, 0)); }

// Number i of a head of one row; the operator has `heads` heads.
DEV float number_of(const GpuToken& x, int row, int head, int i, int heads) {
  const long long place = row * x.batch + head / (heads / x.heads) * x.head + i;
  if (x.is_short) return short_number(x.data, place);
  return static_cast<const float*>(x.data)[place];
}

DEV void write_number(void* to, int is_short, long long place, float x) {
  if (is_short) static_cast<u16*>(to)[place] = static_cast<u16>(pack(x, 0));
  if (!is_short) static_cast<float*>(to)[place] = x;
}

DEV float sum_of_warp(float x) {
  UNROLL for (int d = 1; d < 32; d <<= 1) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// Sums each lane's numbers over the four warps and returns the sum to every warp. `room`: 128 floats in shared memory;
// there must be a barrier between the last read of it and this call.
DEV float total_of_warps(float own, float* room) {
  room[CORTADO_THREAD] = own;
  __syncthreads();
  const int lane = CORTADO_THREAD & 31;
  return room[lane] + room[32 + lane] + room[64 + lane] + room[96 + lane];
}

}  // namespace device
