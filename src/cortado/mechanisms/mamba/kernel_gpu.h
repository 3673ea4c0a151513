// Arguments of Mamba's selective scan on a GPU. Read by C++ and by NVRTC, so it includes nothing.
#pragma once

namespace cortado::mamba_kernel {

// The scan of kernel.h and its gradient. All tensors are float32 and contiguous; N is at most STATES.
struct GpuSelective {
  const float *x, *step;  // [B, T, E]
  const float* a;         // [E, N]
  const float *b, *c;     // [B, T, N]
  const float* start;     // [rows, E, N]
  float *y, *last;        // null: not computed
  float* kept;            // [stages, E, N]: each row's state before every stage of tokens; null: not kept
  // of packed sequences: row n has tokens bounds[n] .. bounds[n + 1] - 1; null: every row has T tokens
  const long long* bounds;
  int tokens, channels, states;

  // The gradient's. The caller sums da over the rows, and parts over the blocks of channels.
  const float *dy, *dlast;  // dlast [rows, E, N]; null: 0
  float *dx, *dstep;        // [B, T, E]
  float *da, *dstart;       // [rows, E, N]
  float* parts;             // [blocks of channels, B, T, 2 N]: gradients of b, then of c
  long long part;           // numbers per block of channels in `parts`
};

constexpr int kGpuSelectiveThreads = 256, kGpuLanes = 4;  // lanes that share a channel's states
constexpr int kGpuSelectiveChannels = kGpuSelectiveThreads / kGpuLanes;
constexpr int kGpuWarps = kGpuSelectiveThreads / 32;
constexpr int kGpuMostStates = 64;

// Tokens of a stage, so that a lane holds 64 numbers for all of their states.
constexpr int gpu_stage_tokens(int states) { return 256 / states; }
// Floats of a stage in shared memory: x, step and dy of the block's channels, b and c.
constexpr int gpu_stage_numbers(int states) {
  return gpu_stage_tokens(states) * (3 * kGpuSelectiveChannels + 2 * states);
}
// Bytes of shared memory: two stages, and per warp the sums for b and c.
constexpr int gpu_selective_bytes(int states) {
  return (2 * gpu_stage_numbers(states) + kGpuWarps * gpu_stage_tokens(states) * 2 * states) * 4;
}

// The index in `kept` of a row's first stage.
constexpr long long gpu_first_stage(long long row, long long first_token, int tokens, int stage, bool packed) {
  return packed ? first_token / stage + row : row * ((tokens + stage - 1) / stage);
}

}  // namespace cortado::mamba_kernel
