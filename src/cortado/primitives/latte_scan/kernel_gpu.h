// latte_scan's kernels on a GPU, forward and every gradient: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::latent {

using cuda::GpuTimed;

// With M_t the running maximum of the logits, N_t = sum of e^(theta_s - M_t) over s <= t, p_t the weights of the latents,
// W_s = e^(theta_s - M) and U_t = p_t e^(M - M_t) / N_t, both relative to one M a chunk, all of them walk through
//   o_t = q_t S + (q k^T, s <= t) v        S <- S + k^T v
// as the gated scan does without gates, where S is rescaled by channel when a chunk begins:
//   task          q        k     v     S            o is then
//   read          U        W     v     [L, V]       the output
//   weights       do       v     W     [V, L]       times 1 / N: w, the derivative by p; of keys in v and queries in do: scores
//   values        W        U     do    [L, V]       dv                                in reverse, from the last token on
//   logits        v        do    U     [V, L]       W (o - D), dtheta; D_s = sum of U_t w_t over t >= s      in reverse
struct GpuLatte {
  gated::GpuScan scan;  // q, k, v, o as above, of what U and W are made of: p (or its logits) and theta; parts as there
  GpuTimed theta;       // 16-bit numbers; of `logits`
  GpuTimed weights;     // w, of `logits`
  const float *normalizer, *maximum;  // [rows, parts, heads, L], before the first chunk on the way, or null: 0, -inf.
                                      // In reverse D, and what S and D are relative to
  float *last_normalizer, *last_maximum;  // the same behind the last one, or null
  float*
      carries;  // [chunks, heads, 2, L]: N and M in front of each chunk, which `weights` writes, and what is in reverse reads
  float* scratch;  // [blocks, kGpuScratch]: where logits rise steeply
  int softmax;     // of `read`: q has logits
  int latents;
};

// Parts of time, joined: states [rows, parts, heads, K, V], sums and maxima [rows, parts, heads, L] are what parts leave of
// nothing; states become what they begin with, begin_sums and begin_maxima are. In reverse a maximum is what a part is
// relative to, however large those behind are.
struct GpuLatteJoin {
  float* states;
  const float *sums, *maxima;
  float *begin_sums, *begin_maxima;
  const float *initial, *initial_sum, *initial_maximum;  // [rows, heads, ...], or null: 0, 0, -inf
  float *last, *last_sum, *last_maximum;                 // the same, or null
  int rows, parts, heads, keys, values, latents;
  int across, reverse;  // the latents are the values
};

// p = softmax(query), dquery = p (w - <p, w>).
struct GpuQueryGradient {
  GpuTimed query, weights, p, gradient;
  int tokens, heads, latents;
};

constexpr int kGpuWarps = gated::kGpuThreads / 32;
constexpr int kGpuFloatRow = 72;  // of [tokens, 64] floats: 64, and what keeps four rows in different banks
// Of a block, where a chunk's logits rise by more than kSteep: log-sums [64, 128], pairs [64, 64], outputs [64, 64].
constexpr int kGpuScratch = 64 * (128 + 64 + 64);
constexpr float kSteep = 70.0f;  // e^70 is a number in every type that is used

// Apart: half of a block's warps prepares chunks while the other half multiplies the ones before; where shared memory
// suffices, and registers, as they do with KEYS=64.
constexpr int gpu_latte_threads(bool apart) { return apart ? 2 * gated::kGpuThreads : gated::kGpuThreads; }
constexpr int gpu_latte_stages(bool apart) { return apart ? 4 : 3; }

// Bytes of shared memory.
constexpr int gpu_latte_stage_bytes(int keys, bool logits) {
  return gated::gpu_stage_bytes(keys) + (logits ? 2 * gated::kGpuChunk * gated::kGpuPiece * 2 : 0);
}
constexpr int gpu_latte_shared_bytes(int keys, bool apart, bool across, bool logits) {
  const int width = across ? gated::kGpuPiece : keys;  // of the latents that a block has
  const int outer = gated::kGpuChunk * kGpuFloatRow * 4;
  return gpu_latte_stages(apart) * gpu_latte_stage_bytes(keys, logits) + keys * gated::kGpuPiece * 2 +
         (3 * kGpuWarps + 1) * width * 4 + 16 + (across ? outer : 0);
}

}  // namespace cortado::latent
