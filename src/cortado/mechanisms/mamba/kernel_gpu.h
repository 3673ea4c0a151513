// Mamba's selective scan on a GPU: sizes and pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::mamba_kernel {

// kernel.h's scan and its gradient. Everything is float32, without gaps; N up to STATES.
struct GpuSelective {
  const float *x, *step;    // [B, T, E]
  const float* a;           // [E, N]
  const float *b, *c;       // [B, T, N]
  const float* start;       // [rows, E, N]
  float *y, *last;          // y null: not
  float* kept;              // the state in front of every stage of tokens of a row, [stages, E, N], or null: not
  const long long* bounds;  // packed sequences: row n has tokens bounds[n] .. bounds[n + 1]; null: rows of T tokens
  int tokens, channels, states;

  // The gradient's: what is left to be summed up has a slice for each row (da) or each block of channels (parts).
  const float *dy, *dlast;  // dlast [rows, E, N], or null: 0
  float *dx, *dstep;        // [B, T, E]
  float *da, *dstart;       // [rows, E, N]
  float* parts;             // [blocks of channels, B, T, 2 N]: of b, and behind them of c
  long long part;           // numbers of a block of channels
};

constexpr int kGpuSelectiveThreads = 256, kGpuLanes = 4;  // lanes that share a channel's states
constexpr int kGpuSelectiveChannels = kGpuSelectiveThreads / kGpuLanes;
constexpr int kGpuWarps = kGpuSelectiveThreads / 32;
constexpr int kGpuMostStates = 64;

// Tokens of a stage: so many that a lane has 64 numbers of all their states.
constexpr int gpu_stage_tokens(int states) { return 256 / states; }
// Numbers of a stage: x, step and dy of the block's channels, b and c.
constexpr int gpu_stage_numbers(int states) {
  return gpu_stage_tokens(states) * (3 * kGpuSelectiveChannels + 2 * states);
}
// Two stages, and of every warp what is to be summed up of b and c.
constexpr int gpu_selective_bytes(int states) {
  return (2 * gpu_stage_numbers(states) + kGpuWarps * gpu_stage_tokens(states) * 2 * states) * 4;
}

// Where the stages of a row begin in `kept`.
constexpr long long gpu_first_stage(long long row, long long first_token, int tokens, int stage, bool packed) {
  return packed ? first_token / stage + row : row * ((tokens + stage - 1) / stage);
}

}  // namespace cortado::mamba_kernel
