// The arguments of latte_scan's GPU kernels, forward and all gradients: sizes, strides and pointers. Read by C++ and by
// NVRTC.
#pragma once

#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::latent {

using cuda::GpuTimed;

// Let M_t be the running maximum of the logits, N_t = sum of e^(theta_s - M_t) over s <= t, and p_t the weights of the
// latents. With one reference M per chunk, W_s = e^(theta_s - M) and U_t = p_t e^(M - M_t) / N_t. Every kernel computes
//   o_t = q_t S + (q k^T, s <= t) v        S <- S + k^T v
// like the gated scan without gates. At the start of a chunk S is rescaled per latent to the chunk's M.
//   task          q        k     v     S            o is then
//   read          U        W     v     [L, V]       the output
//   weights       do       v     W     [V, L]       / N: w, the derivative by p; scores if v = keys, do = queries
//   values        W        U     do    [L, V]       dv                                in reverse, from the last token on
//   logits        v        do    U     [V, L]       W (o - D), dtheta; D_s = sum of U_t w_t over t >= s      in reverse
struct GpuLatte {
  gated::GpuScan scan;  // q, k, v, o as above, with p (or its logits) and theta for U and W; parts as in GpuScan
  GpuTimed theta;       // 16-bit, for `logits`
  GpuTimed weights;     // w, for `logits`
  const float *normalizer, *maximum;  // [rows, parts, heads, L], before the first chunk of the walk, or null: 0, -inf.
                                      // In reverse D, and the reference of S and D
  float *last_normalizer, *last_maximum;  // like these, after the last chunk, or null: not wanted
  float* carries;  // [chunks, heads, 2, L]: N and M before each chunk; written by `weights`, read by reverse walks
  float* scratch;  // [blocks, kGpuScratch]: for chunks with steep logits
  int softmax;     // `read`: q has logits
  int latents;
};

// Joins parts of time. states [rows, parts, heads, K, V], sums and maxima [rows, parts, heads, L] are what the parts
// leave starting from 0. The join writes what each part begins with to states, begin_sums and begin_maxima. In reverse
// a part's maximum is its reference, even if later parts have larger ones.
struct GpuLatteJoin {
  float* states;
  const float *sums, *maxima;
  float *begin_sums, *begin_maxima;
  const float *initial, *initial_sum, *initial_maximum;  // [rows, heads, ...], or null: 0, 0, -inf
  float *last, *last_sum, *last_maximum;                 // the final values, or null: not wanted
  int rows, parts, heads, keys, values, latents;
  int across, reverse;  // across: the latents are the values
};

// Computes p = softmax(query) and dquery = p (w - <p, w>).
struct GpuQueryGradient {
  GpuTimed query, weights, p, gradient;
  int tokens, heads, latents;
};

constexpr int kGpuWarps = gated::kGpuThreads / 32;
constexpr int kGpuFloatRow = 72;  // floats per row of [tokens, 64]: padded to put four rows into different banks
// Per block, for chunks whose logits rise by more than kSteep: log-sums [64, 128], pairs [64, 64], outputs [64, 64].
constexpr int kGpuScratch = 64 * (128 + 64 + 64);
constexpr float kSteep = 70.0f;  // e^70 is finite in every type that is used

// apart: half of a block's warps prepare chunks while the other half multiplies the preceding ones. Possible if shared
// memory and registers suffice, as with KEYS=64.
constexpr int gpu_latte_threads(bool apart) { return apart ? 2 * gated::kGpuThreads : gated::kGpuThreads; }
constexpr int gpu_latte_stages(bool apart) { return apart ? 4 : 3; }

// Bytes of shared memory per block.
constexpr int gpu_latte_stage_bytes(int keys, bool logits) {
  return gated::gpu_stage_bytes(keys) + (logits ? 2 * gated::kGpuChunk * gated::kGpuPiece * 2 : 0);
}
constexpr int gpu_latte_shared_bytes(int keys, bool apart, bool across, bool logits) {
  const int width = across ? gated::kGpuPiece : keys;  // latents per block
  const int outer = gated::kGpuChunk * kGpuFloatRow * 4;
  return gpu_latte_stages(apart) * gpu_latte_stage_bytes(keys, logits) + keys * gated::kGpuPiece * 2 +
         (3 * kGpuWarps + 1) * width * 4 + 16 + (across ? outer : 0);
}

}  // namespace cortado::latent
