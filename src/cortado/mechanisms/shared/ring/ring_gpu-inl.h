// Joins a ring of past keys and values with new ones, on a GPU; see ring_gpu.h.
#pragma once

#include "cortado/mechanisms/shared/ring/ring_gpu.h"
#include "cortado/primitives/cuda/device.h"

namespace cortado::window {

// Piece number `n` of a row's keys or values.
DEV void join_piece(const GpuRing& in, const GpuRing::Part& part, int n) {
  const int pieces = part.width / 8, token_and_head = n / pieces, piece = n - token_and_head * pieces;
  const int token = token_and_head / in.heads, head = token_and_head - token * in.heads;
  const long long row = blockIdx.y;
  const auto place = [&](const cuda::GpuTimed& x, int t) {
    u16* const numbers = static_cast<u16*>(x.data) + row * x.batch + device::times(t, x.token) + head * x.head;
    return reinterpret_cast<device::Four*>(numbers) + piece;
  };
  *place(part.joined, token) = token < in.places ? *place(part.past, token) : *place(part.added, token - in.places);
}

DEV void join_ring(const GpuRing& in) {
  const int n = blockIdx.x * kGpuRingThreads + CORTADO_THREAD, rows = (in.places + in.tokens) * in.heads;
  const int keys = rows * (in.keys.width / 8), values = rows * (in.values.width / 8);
  if (n < keys) join_piece(in, in.keys, n);
  if (n >= keys && n < keys + values) join_piece(in, in.values, n - keys);
  if (n > 0) return;
  const long long there = in.position[blockIdx.y];
  in.first_key[blockIdx.y] = there < in.places ? in.places - there : 0;
}

}  // namespace cortado::window
