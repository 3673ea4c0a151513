// The arguments of timewise_gpu-inl.h: sizes, strides and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::timewise {

// [B,T,D] float32, channels contiguous; strides in elements.
struct GpuChannels {
  float* data;
  long long batch, token;
};

struct GpuTimes {
  const long long* bounds;  // packed: row n is tokens bounds[n] .. bounds[n + 1] of the only batch row
  int rows, tokens, channels;
  int parts,
      part_tokens;  // parts per row, of at least part_tokens each: a packed row is cut as if it were alone
  int reverse;
  float* carries;  // [rows, parts, channels, 2]
};

constexpr int kGpuTimewiseThreads = 128;
constexpr int kGpuJoinWarps = 16;  // per block that joins the parts of 32 channels of a row
constexpr int kGpuJoinThreads = 32 * kGpuJoinWarps, kGpuJoinBytes = kGpuJoinThreads * 8;

}  // namespace cortado::timewise
