// The arguments of the GPU kernel for linear maps of a few rows: sizes and pointers. Read by C++ and by NVRTC: nothing
// is included.
#pragma once

namespace cortado::token {

struct GpuMap {
  const void* weight;  // 16-bit [out, in]
  const void* bias;    // [out], or null
  const void* onto;    // [rows, out] added to y, or null
  void* y;             // [rows, out]
  int out;
};

constexpr int kGpuMaps = 4;  // most maps per call

// y = x Wᵀ + b for each of `count` maps of one x, [rows, in] in 16 bits, summed in float32. With `onto` the result is
// onto + y, y being rounded before the addition. With `gated` the first two maps are combined: the first y is silu(x
// W_0ᵀ + b_0) ⊙ (x W_1ᵀ + b_1), with each of the three rounded.
struct GpuLinear {
  const void* x;
  GpuMap maps[kGpuMaps];
  int count, rows, in;  // `in` is a multiple of 8
  int gated;
};

constexpr int kGpuLinearThreads = 256;  // per block: each warp sums over its part of `in`
constexpr int kGpuLinearOut = 16;       // outputs per block and row
constexpr int kGpuLinearRows = 8;       // rows per tile; a block has 1, 2, 4 or 8 tiles, which cover all rows of x
constexpr int kGpuLinearTiles = 8;      // at most

// Pieces in flight (asynchronous copies).
constexpr int gpu_linear_ahead(int tiles) { return tiles <= 2 ? 4 : 2; }
// Shared memory: the pieces in flight, later the warps' sums.
constexpr int gpu_linear_bytes(int tiles) { return gpu_linear_ahead(tiles) * (2 + tiles) * kGpuLinearThreads * 16; }

}  // namespace cortado::token
