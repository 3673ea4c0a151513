// Linear maps of a few rows on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::token {

struct GpuMap {
  const void* weight;  // 16-bit [out, in]
  const void* bias;    // [out], or null
  const void* onto;    // [rows, out], or null: what y is added to
  void* y;             // [rows, out]
  int out;
};

constexpr int kGpuMaps = 4;  // of one call at most

// y = x Wᵀ + b for each of `count` maps of the same x, [rows, in] of 16 bits, summed in float32; onto + y, y being rounded,
// where there is something. With `gated` the first two are one: y of the first becomes silu(x W_0ᵀ + b_0) ⊙
// (x W_1ᵀ + b_1), each of the three rounded.
struct GpuLinear {
  const void* x;
  GpuMap maps[kGpuMaps];
  int count, rows, in;  // `in` is a multiple of 8
  int gated;
};

constexpr int kGpuLinearThreads = 256;  // of a block: each warp sums over its part of `in`
constexpr int kGpuLinearOut = 16;       // numbers that a block makes of each row
constexpr int kGpuLinearRows = 8;       // of a tile; a block has 1, 2, 4 or 8 of them: all rows of x
constexpr int kGpuLinearTiles = 8;      // at most

// Pieces that are on their way.
constexpr int gpu_linear_ahead(int tiles) { return tiles <= 2 ? 4 : 2; }
// Shared memory: what is on its way, and later the warps' sums.
constexpr int gpu_linear_bytes(int tiles) { return gpu_linear_ahead(tiles) * (2 + tiles) * kGpuLinearThreads * 16; }

}  // namespace cortado::token
