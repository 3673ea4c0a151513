// The delta scan's kernels on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::delta {

using cuda::GpuTimed;

// In a chunk of 64 tokens, with P_t the sum of the gates from its start to t, S the state there and
//   A_ts = e^{P_t - P_s} k_t . k_s  for s < t, else 0         N = (I + A diag(beta))^-1, unit lower triangular,
// the state errs by e, and what is stored is u:
//   e = N (v - (k e^P) S),   u = beta e;   o and S are the gated scan's of (q, k, u).
// From behind, R being dL/dS, y is what the gated scan has for dv, of (k, q, do); of that
//   dv = N^T (beta y),       R also loses k dv^T.
// delta_inverse makes N of every chunk, delta_scan e, o and S, and delta_gradient dv. As in the gated scan, R is had as
// R / scale, and the gates' gradient is, of a segment that ends with token e,
//   dg_t = Y + sum of (o_u do_u - v_u dv_u) over u from t to e,
// of which delta_scan's `dots` are o do and delta_gradient's v dv.
//
// With a gate for each channel of the keys, P_t is one for each and
//   A_ts = (k_t e^{P_t - P_s}) . k_s.
// The walk then has no gates: delta_channels is given a = k e^P and s = k e^{P_end - P} and computes e alone,
//   e = N (v - a S),     S <- e^{P_end} S + s^T (beta e),
// of which u = beta e, and o and S are the gated scan's. From behind a and s are exchanged:
//   dv = N^T (beta (y + scale s R)),     R <- e^{P_end} R + e^{g of its first token} added - a^T dv / scale,
// y and added being what the gated scan makes of a chunk of (k, q, do) alone: its dv, and the state it leaves.
struct GpuDelta {
  // Of delta_gradient q is k, k is q, v is do, with is v, and o is not written. Of delta_channels q is a and k is s, from
  // behind s and a, v is v or y, and there are no gates and no o.
  gated::GpuScan scan;
  GpuTimed inverse;    // 16-bit [B, T, heads, 64]: row t of its chunk's N; of delta_gradient with the columns reversed
  GpuTimed beta;       // float32 [B, T, h]
  GpuTimed written;    // 16-bit, as o: e, or dv; data null: not
  const float* kept;   // of delta_channels: e^{P_end} [chunks, heads, K]
  int writes_stored;   // of delta_channels: what is written is u in place of e
  const float* added;  // of delta_channels_gradient: [rows, chunks, heads, K, V], chunks in its own order; null: 0
  int chunks;          // of the longest row
  GpuTimed gates;      // float32 [B, T, heads, K]
};

// Few heads of long rows are cut into parts of time. What a part makes of the state before it, by either walk, is
// through S + states: what it leaves of nothing, and of each of K unit vectors with v = 0, which are two walks more. The
// join makes of `states` what the parts begin with, in each walk's own order.
struct GpuDeltaJoin {
  float* states;         // [rows, parts, heads, K, V]
  const float* through;  // [rows, parts, heads, K, K]
  const float* initial;  // [rows, heads, K, V], or null: 0
  float* last;           // the same, or null
  int parts, heads, keys, values;
  float initial_factor, last_factor;
};

struct GpuInverse {
  GpuTimed k;        // 16-bit numbers
  GpuTimed g, beta;  // float32; g.data null: no gates
  GpuTimed inverse;  // as above, to be written
  GpuTimed turned;   // the same with the columns reversed; data null: not
  // With a gate for each channel: g is [B, T, heads, K], and what delta_channels is given is written as well.
  GpuTimed answers, stored;  // 16-bit [B, T, heads, K]: a and s
  float* kept;               // [chunks, heads, K]
  const long long* bounds;
  int tokens, heads, keys;
};

// What is stored, from e: u = beta e.
struct GpuStored {
  GpuTimed e, beta, u;
  int tokens, heads, values;
};

// The gradients that are left, of values that are known: with r = gained - lost / scale + (dv . e) k
//   dk = beta r - (held / scale - beta (dv . e) k)      dbeta = k . r
struct GpuRest {
  GpuTimed k, e, dv, beta;      // beta as above
  GpuTimed held, lost, gained;  // 16-bit [B, T, heads, K]: S dv, R's answer to dv, and to do
  GpuTimed dk;                  // 16-bit
  GpuTimed dk_gates;  // with a gate for each channel: dk with `held` added, of which the gates' gradient is made
  float* dbeta;       // [B, T, heads]
  float inverse_scale;
  int tokens, heads, keys, values;
};

constexpr int kGpuInverseThreads = 128, kGpuJoinThreads = 512;

// Bytes of shared memory that a block takes. Of the walks: behind the gated scan's the stages of N, what is multiplied by
// it, dv, and the betas of four chunks.
constexpr int kGpuSquareBytes = gated::kGpuChunk * gated::kGpuChunk * 2;
constexpr int gpu_scan_bytes(int keys) { return (gated::gpu_shared_bytes(keys) + 1023) / 1024 * 1024; }
constexpr int gpu_delta_shared_bytes(int keys) {
  return gpu_scan_bytes(keys) + (gated::kGpuStages + 2) * kGpuSquareBytes + 4 * gated::kGpuChunk * 4;
}
// Of delta_join: a piece of the state.
constexpr int gpu_join_shared_bytes(int keys) { return keys * gated::kGpuPiece * 4; }
// Of delta_inverse: k, which becomes N; what 16 bits leave of N, where the gates were; A diag(beta) as two tiles, and its
// diagonal in 32 bits; betas; of gates of channels the sums.
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
