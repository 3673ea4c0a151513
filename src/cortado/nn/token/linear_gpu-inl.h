// Linear maps of a few rows; see linear_gpu.h. Reading the weights takes most of the time. So each block reads sixteen
// whole rows of them, each of its warps every eighth piece, with some pieces always in flight. The order of a product's
// sum is arbitrary if both operands agree on it: a lane reads eight neighbouring numbers of a row at once and uses them
// in place of the numbers that two products of depth 16 expect there. The copies go to shared memory, although no other
// thread reads them, because the compiler saves registers and would make loads into registers wait for each other.
#pragma once

#include "cortado/nn/token/linear_gpu.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::token {

constexpr int kLinearPiece = 32, kLinearWarps = kGpuLinearThreads / 32;

template <int kTiles>
struct LinearOfFewRows {
  static constexpr int kAhead = gpu_linear_ahead(kTiles);
  const GpuLinear& in;
  const int lane, warp;
  GpuMap map;         // this block's map
  const void* other;  // the weights of rows 8 to 15 of the block
  int first, second;  // outputs of the lanes' first rows, and of the eight rows after

  DEV explicit LinearOfFewRows(const GpuLinear& given)
      : in(given), lane(CORTADO_THREAD & 31), warp(CORTADO_THREAD >> 5), map(given.maps[0]) {
    UNROLL for (int i = 1; i < kGpuMaps; ++i) {
      if (static_cast<int>(blockIdx.y) == i) map = given.maps[i];
    }
    const int begin = blockIdx.x * (in.gated ? kGpuLinearOut / 2 : kGpuLinearOut);
    other = in.gated ? in.maps[1].weight : map.weight;
    first = begin + (lane >> 2);
    second = in.gated ? first : first + 8;
  }

  DEV const u16* row_of(const void* matrix, int row, int rows) const {
    return row < rows ? static_cast<const u16*>(matrix) + device::times(row, in.in) : nullptr;
  }

  DEV void run() {
    float sums[kTiles][4] = {};
    add_up(sums);
    __syncthreads();  // all copies have been read
    auto* const room = reinterpret_cast<float*>(device::shared_memory());
    UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      UNROLL for (int i = 0; i < 4; ++i) room[((warp * kTiles + tile) * 4 + i) * 32 + lane] = sums[tile][i];
    }
    __syncthreads();
    // Each lane owns four outputs of a tile, or two if gated: it combines pairs. The warps write one after the other.
    const int places = in.gated ? 2 : 4;
    UNROLL_BY(1) for (int n = warp; n < places * kTiles; n += kLinearWarps) {
      const int tile = n / places, place = n - tile * places, out = place < 2 ? first : second;
      const int row = tile * kGpuLinearRows + (lane & 3) * 2 + (place & 1);
      if (row < in.rows && out < map.out) write(row, out, result(room, tile, place, out));
    }
  }

 private:
  // Where a lane keeps eight numbers of operand `i` of a piece: first the weights' rows, then the tiles of x.
  DEV unsigned char* place_of(int piece, int i) const {
    const int stage = piece % kAhead * (2 + kTiles) + i;
    return device::shared_memory() + (stage * kGpuLinearThreads + CORTADO_THREAD) * 16;
  }

  // Missing rows, and numbers after a row's end, are read as zeros.
  DEV void fetch(int piece, int i, const u16* row) const {
    const int at = (piece * kLinearWarps + warp) * kLinearPiece + (lane & 3) * 8;
    const bool there = row && at < in.in;
    device::copy16(device::shared_address(place_of(piece, i)), there ? row + at : in.x, there ? 16 : 0);
  }

  DEV void add_up(float (*sums)[4]) const {
    const u16* rows[2 + kTiles] = {row_of(map.weight, first, map.out), row_of(other, second, map.out)};
    UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      rows[2 + tile] = row_of(in.x, tile * kGpuLinearRows + (lane >> 2), in.rows);
    }
    const int pieces = (in.in + kLinearWarps * kLinearPiece - 1) / (kLinearWarps * kLinearPiece);
    const auto fetch_all = [&](int piece) {
      UNROLL for (int i = 0; i < 2 + kTiles; ++i) {
        if (piece < pieces) fetch(piece, i, rows[i]);
      }
      device::end_group();
    };
    UNROLL for (int piece = 0; piece < kAhead; ++piece) fetch_all(piece);
    UNROLL_BY(1) for (int piece = 0; piece < pieces; ++piece) {
      device::wait_for_groups<kAhead - 1>();
      device::keep_order();  // instead of a barrier: only this thread reads its copies
      device::Four x[2 + kTiles];
      UNROLL for (int i = 0; i < 2 + kTiles; ++i) x[i] = *reinterpret_cast<const device::Four*>(place_of(piece, i));
      UNROLL for (int half = 0; half < 4; half += 2) {
        const u32 a[4] = {x[0].x[half], x[1].x[half], x[0].x[half + 1], x[1].x[half + 1]};
        UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          device::multiply(sums[tile], a, x[2 + tile].x[half], x[2 + tile].x[half + 1]);
        }
      }
      device::keep_order();
      fetch_all(piece + kAhead);
    }
    device::wait_for_groups<0>();
  }

  DEV float total(const float* room, int tile, int place) const {
    float sum = 0;
    UNROLL for (int i = 0; i < kLinearWarps; ++i) sum += room[((i * kTiles + tile) * 4 + place) * 32 + lane];
    return sum;
  }

  DEV static float with_bias(const void* bias, int out, float x) {
    return bias ? x + device::short_number(bias, out) : x;
  }

  DEV float result(const float* room, int tile, int place, int out) const {
    const float y = device::rounded(with_bias(map.bias, out, total(room, tile, place)));
    if (!in.gated) return y;
    const float up = device::rounded(with_bias(in.maps[1].bias, out, total(room, tile, place + 2)));
    return device::rounded(y * device::sigmoid(y)) * up;
  }

  DEV void write(int row, int out, float x) const {
    const long long at = device::times(row, map.out) + out;
    if (map.onto) x += device::short_number(map.onto, at);
    static_cast<u16*>(map.y)[at] = static_cast<u16>(device::pack(x, 0));
  }
};

}  // namespace cortado::token
