// The arguments of the gated scan's GPU kernels, forward and all gradients: sizes, strides and pointers. Read by C++
// and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::gated {

using cuda::GpuTimed;

// Every walk computes
//   o_t = scale S_t^T q_t,  S_t = exp(g_{t + shift}) S_{t-1} + k_t v_t^T
// from the first token on, or in reverse from the last one on, where S_{t-1} is S_{t+1}. There is one gate per head (or
// none; kernel.cu), or one per row or per column of S (kernel_channels.cu). With these inputs, o is:
//   (q, k, v)              the read
//   (do, v, k)             dq; the states are S^T
//   (v, do, q) backward    dk, with the gate of the token that follows in the scan's order (shift 1, in reverse -1)
//   (k, q, do) backward    dv, likewise
// In a backward walk the state is dS / scale. Its initial value is dS_T times 1 / scale. Its last value times scale is
// R_0, and exp(g_0) R_0 is dS_0. Few heads of long rows fill a GPU only if their time is cut into parts:
// gated_scan_states computes the state that each part leaves starting from 0, gated_scan_join computes from those the
// state that each part begins with, and gated_scan walks through all parts concurrently.
//
// The gates' gradient: within a segment of kGpuSegment tokens that ends (in the scan's order) with token e
//   dg_t = Y + sum of (q_u dq_u - k_u dk_u) over u from t to e,   Y = <dS, S> after e.
// The dq walk writes q_u dq_u to `dots` and S to `crossing_states`; the dk walk writes k_u dk_u and Y.
// gated_scan_gate_gradient adds them up. Sums stay within a segment: over a whole row, 16-bit rounding errors would add
// up.
struct GpuScan {
  GpuTimed q, k, v, o;  // 16-bit; o has all heads, and is float32 if `wide`
  int wide;
  GpuTimed g;                // float32 [B, T, heads(, channels)]; data null: none
  const float* initial;      // [rows, parts, heads, K, V], or null: 0
  float* last;               // [rows, parts, heads, K, V], or null: not wanted
  float* kept;               // gated_scan_states: [rows, parts, heads(, channels)], the part's factor on the state
  const long long* bounds;   // packed: row n is tokens bounds[n] .. bounds[n + 1]; null: rows of T tokens
  int batch, tokens, heads;  // B, T
  int keys, values;          // keys at most KEYS; both multiples of 8
  int parts;                 // parts of time per row, in the scan's order; some may be empty
  int part_tokens;           // at least, whatever the other rows: a packed row is cut as if it were alone
  int shift;                 // -1, 0 or 1
  float scale, initial_factor, last_factor;
  // For gated_scan_dot:
  GpuTimed with;           // like o: the factor of o in `dots`
  float* dots;             // [2 pieces, B, T, heads]
  float* crossing_states;  // [segments, heads, pieces, KEYS 64] in the threads' layout: written, or if
  float* crossings;        // [segments, heads, pieces, kGpuThreads / 32] is not null, read
};

// Joins the parts of a row: states [rows, parts, heads, K, V] hold what gated_scan_states left and are overwritten by
// the states that the parts begin with.
struct GpuJoin {
  float* states;
  const float *kept, *initial;              // initial: [rows, heads, K, V], or null: 0
  float* last;                              // [rows, heads, K, V], or null: not wanted
  int rows, parts, heads, numbers, values;  // numbers: K V
  int kept_width, on_keys;                  // 1; with one gate per channel K (on_keys) or V
  float initial_factor, last_factor;
};

struct GpuGateGradient {
  const float *dots_q, *dots_k;  // [slabs, B, T, heads]
  const float* crossings;        // [segments, heads, partials]
  GpuTimed g;
  float* gradient;  // [B, T, heads]
  const long long* bounds;
  int tokens, heads, slabs, partials, batch;
  int reverse;
};

// The gates' gradient with one gate per channel: y dy - x dx, channel by channel, replaces the dots. y is q and x is k
// on the keys' side. The walks that compute dy and dx have the gates on their values, and leave Y of each channel.
struct GpuChannelGradient {
  GpuTimed y, dy, x, dx, g;  // g: float32 [B, T, heads, K]
  const float* crossings;    // [segments, heads, pieces, 4, 64]
  float* gradient;           // [B, T, heads, K]
  const long long* bounds;
  int tokens, heads, keys, pieces;
  int reverse;
};

constexpr float kCut = -60.0f;                                    // a gate below this leaves nothing
constexpr int kGpuChunk = 64, kGpuPiece = 64, kGpuThreads = 256;  // kGpuPiece: values per block
constexpr int kGpuSegment = 4 * kGpuChunk;
constexpr int kGpuGateHeads = 16;  // gated_scan_gate_gradient: heads per block, which share its threads equally

constexpr int kGpuStages = 3;                // of inputs, with one gate per head
constexpr int kGpuStateCopies = 2;           // in 16 bits: one to read, one to write
constexpr int kGpuSums = 3 * kGpuChunk + 4;  // numbers for a chunk's gates

// Bytes of shared memory per block.
constexpr int gpu_stage_bytes(int keys) { return kGpuChunk * (2 * keys + kGpuPiece) * 2; }
constexpr int gpu_shared_bytes(int keys) {
  return kGpuStages * gpu_stage_bytes(keys) + kGpuStateCopies * keys * kGpuPiece * 2 + 4 * kGpuChunk * 4 +
         2 * kGpuSums * 4;
}

// With one gate per channel of the keys or of the values.
constexpr int kGpuBlock = 16;  // tokens whose gates are summed at a time
constexpr int gpu_channel_stage_bytes(int keys, bool on_keys) {
  return gpu_stage_bytes(keys) + kGpuChunk * (on_keys ? keys : kGpuPiece) * 4;
}
constexpr int gpu_channel_shared_bytes(int keys, bool on_keys) {
  const int width = on_keys ? keys : kGpuPiece, blocks = kGpuChunk / kGpuBlock;
  return 2 * gpu_channel_stage_bytes(keys, on_keys) + kGpuStateCopies * keys * kGpuPiece * 2 + kGpuChunk * width * 2 +
         blocks * width * 6 + blocks * 4;
}

// Index of a row's first stretch, if the tokens of all rows are cut into stretches of `each` tokens.
constexpr long long gpu_first_stretch(int each, long long row, long long first_token, int tokens, bool packed) {
  return packed ? first_token / each + row : row * ((tokens + each - 1) / each);
}
// For crossing_states and crossings; and for what is kept per chunk.
constexpr long long gpu_first_segment(long long row, long long first_token, int tokens, bool packed) {
  return gpu_first_stretch(kGpuSegment, row, first_token, tokens, packed);
}
constexpr long long gpu_first_chunk(long long row, long long first_token, int tokens, bool packed) {
  return gpu_first_stretch(kGpuChunk, row, first_token, tokens, packed);
}

}  // namespace cortado::gated
