// What timewise_gpu-inl.h goes through: sizes, strides and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::timewise {

// Float32 [B,T,D], channels without gaps; strides in numbers.
struct GpuChannels {
  float* data;
  long long batch, token;
};

struct GpuTimes {
  const long long* bounds;  // packed: row n has tokens bounds[n] .. bounds[n + 1] of the only batch row
  int rows, tokens, channels;
  int parts,
      part_tokens;  // of every row so many parts of time, of so many tokens at least: packed rows are cut as if alone
  int reverse;
  float* carries;  // [rows, parts, channels, 2]
};

constexpr int kGpuTimewiseThreads = 128;
constexpr int kGpuJoinWarps = 16;  // of a block that joins the parts of 32 channels of a row
constexpr int kGpuJoinThreads = 32 * kGpuJoinWarps, kGpuJoinBytes = kGpuJoinThreads * 8;

}  // namespace cortado::timewise
