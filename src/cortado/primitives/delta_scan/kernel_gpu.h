// The arguments of the delta scan's GPU kernels: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::delta {

using cuda::GpuTimed;

// In a chunk of 64 tokens let P_t be the sum of the gates from the chunk's start to t, S the state at its start and
//   A_ts = e^{P_t - P_s} k_t . k_s  for s < t, else 0         N = (I + A diag(beta))^-1, unit lower triangular.
// With the error e of the state's predictions and the stored values u
//   e = N (v - (k e^P) S),   u = beta e;   o and S are the gated scan's of (q, k, u).
// Backward, with R = dL/dS, let y be the gated scan's dv for (k, q, do). Then
//   dv = N^T (beta y),       and k dv^T is subtracted from R.
// delta_inverse computes N of every chunk, delta_scan e, o and S, and delta_gradient dv. As in the gated scan, R is
// stored as R / scale. The gates' gradient within a segment that ends with token e is
//   dg_t = Y + sum of (o_u do_u - v_u dv_u) over u from t to e;
// delta_scan's `dots` hold o do and delta_gradient's v dv.
//
// With one gate per channel of the keys, P_t is a vector and
//   A_ts = (k_t e^{P_t - P_s}) . k_s.
// The walk then needs no gates: delta_channels reads a = k e^P and s = k e^{P_end - P} and computes only e,
//   e = N (v - a S),     S <- e^{P_end} S + s^T (beta e);
// u = beta e follows, and o and S are the gated scan's. Backward, a and s are exchanged:
//   dv = N^T (beta (y + scale s R)),     R <- e^{P_end} R + e^{g of its first token} added - a^T dv / scale.
// Here y and `added` come from the gated scan of the chunk (k, q, do) alone: its dv, and the state that it leaves.
struct GpuDelta {
  // In delta_gradient: q is k, k is q, v is do, `with` is v, and o is not written. In delta_channels: q is a and k is s
  // (backward s and a), v is v or y, and there are no gates and no o.
  gated::GpuScan scan;
  GpuTimed inverse;    // 16-bit [B, T, heads, 64]: row t of its chunk's N; for delta_gradient with reversed columns
  GpuTimed beta;       // float32 [B, T, h]
  GpuTimed written;    // 16-bit, shaped like o: e, or dv; data null: not wanted
  const float* kept;   // delta_channels: e^{P_end} [chunks, heads, K]
  int writes_stored;   // delta_channels: write u instead of e
  const float* added;  // delta_channels_gradient: [rows, chunks, heads, K, V], chunks in the walk's order; null: 0
  int chunks;          // of the longest row
  GpuTimed gates;      // float32 [B, T, heads, K]
};

// Few heads of long rows are cut into parts of time, which run concurrently. In either walk a part maps the state S
// before it to through S + states. `states` is what the part leaves starting from 0; `through` what it leaves starting
// from each of the K unit vectors with v = 0. These are two extra walks. The join replaces `states` by the states that
// the parts begin with, in the walk's order.
struct GpuDeltaJoin {
  float* states;         // [rows, parts, heads, K, V]
  const float* through;  // [rows, parts, heads, K, K]
  const float* initial;  // [rows, heads, K, V], or null: 0
  float* last;           // [rows, heads, K, V], or null: not wanted
  int parts, heads, keys, values;
  float initial_factor, last_factor;
};

struct GpuInverse {
  GpuTimed k;        // 16-bit
  GpuTimed g, beta;  // float32; g.data null: no gates
  GpuTimed inverse;  // N (GpuDelta::inverse), to be written
  GpuTimed turned;   // N with reversed columns; data null: not wanted
  // With one gate per channel: g is [B, T, heads, K], and the inputs of delta_channels are written as well.
  GpuTimed answers, stored;  // 16-bit [B, T, heads, K]: a and s
  float* kept;               // [chunks, heads, K]
  const long long* bounds;
  int tokens, heads, keys;
};

// Computes the stored values u = beta e.
struct GpuStored {
  GpuTimed e, beta, u;
  int tokens, heads, values;
};

// Computes the remaining gradients. With r = gained - lost / scale + (dv . e) k
//   dk = beta r - (held / scale - beta (dv . e) k)      dbeta = k . r
struct GpuRest {
  GpuTimed k, e, dv, beta;      // beta: as in GpuDelta
  GpuTimed held, lost, gained;  // 16-bit [B, T, heads, K]: S dv, then R read by dv, and by do
  GpuTimed dk;                  // 16-bit
  GpuTimed dk_gates;            // one gate per channel: dk + `held`, from which the gates' gradient is made
  float* dbeta;                 // [B, T, heads]
  float inverse_scale;
  int tokens, heads, keys, values;
};

constexpr int kGpuInverseThreads = 128, kGpuJoinThreads = 512;

// Bytes of shared memory per block. The walks: the gated scan's, then the stages of N, the factor of N, dv, and the
// betas of four chunks.
constexpr int kGpuSquareBytes = gated::kGpuChunk * gated::kGpuChunk * 2;
constexpr int gpu_scan_bytes(int keys) { return (gated::gpu_shared_bytes(keys) + 1023) / 1024 * 1024; }
constexpr int gpu_delta_shared_bytes(int keys) {
  return gpu_scan_bytes(keys) + (gated::kGpuStages + 2) * kGpuSquareBytes + 4 * gated::kGpuChunk * 4;
}
// delta_join: one piece of the state.
constexpr int gpu_join_shared_bytes(int keys) { return keys * gated::kGpuPiece * 4; }
// delta_inverse: k, overwritten by N; the residual of N in 16 bits, where the gates were; A diag(beta) as two tiles,
// and its diagonal blocks in float32; betas; with one gate per channel, the gates' sums.
constexpr int gpu_inverse_gate_bytes(int keys, bool channels) {
  return channels ? gated::kGpuChunk * keys * 4 : kGpuSquareBytes;
}
constexpr int gpu_inverse_shared_bytes(int keys, bool channels) {
  const int blocks = gated::kGpuChunk / gated::kGpuBlock;
  const int sums = channels ? blocks * (keys * 6 + 4) : 0;
  return gated::kGpuChunk * keys * 2 + gpu_inverse_gate_bytes(keys, channels) + 2 * kGpuSquareBytes +
         gated::kGpuChunk * (16 + 1) * 4 + sums;
}

}  // namespace cortado::delta
