// The gated scan's kernels on a GPU, forward and every gradient: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/cuda/timed.h"

namespace cortado::gated {

using cuda::GpuTimed;

// o_t = scale S_t^T q_t,  S_t = exp(g_{t + shift}) S_{t-1} + k_t v_t^T, with a gate for each head (0 where there is none;
// kernel.cu) or for each row of S, or each column (kernel_channels.cu),
// from the first token on, or in reverse from the last one on: then S_{t-1} is S_{t+1}. What comes out of
//   (q, k, v)                 is the read
//   (do, v, k)                dq                              the states S^T
//   (v, do, q) from behind    dk, with the gate of the token that comes next in the scan's own order (shift 1, in reverse -1)
//   (k, q, do) from behind    dv, likewise
// From behind the state is dS / scale: initial is dS_T times 1 / scale, and last times scale R_0, of which exp(g_0) R_0 is
// dS_0. Few heads of long rows fill a GPU only in parts of their time: gated_scan_states computes what each part leaves of
// nothing, gated_scan_join from that what each part begins with, and gated_scan goes through all parts at once.
//
// The gates' gradient. Of a segment of kGpuSegment tokens that ends (in the scan's order) with token e
//   dg_t = Y + sum of (q_u dq_u - k_u dk_u) over u from t to e,   Y = <dS, S> behind e
// of which the dq call leaves q_u dq_u in `dots` and S in `crossing_states`, and the dk call k_u dk_u and Y.
// gated_scan_gate_gradient adds them up. Sums stay within a segment: over the whole row, what 16 bits leave out adds up.
struct GpuScan {
  GpuTimed q, k, v, o;  // 16-bit numbers; o has all heads, and where it is wide float32
  int wide;
  GpuTimed g;                // float32 [B, T, heads(, channels)]; data null: none
  const float* initial;      // [rows, parts, heads, K, V], or null: 0
  float* last;               // the same, or null
  float* kept;               // of gated_scan_states: [rows, parts, heads(, channels)], how much of a state lasts
  const long long* bounds;   // packed sequences: row n has tokens bounds[n] .. bounds[n + 1]; null: rows of T tokens
  int batch, tokens, heads;  // B, T
  int keys, values;          // keys up to KEYS; both multiples of 8
  int parts;                 // of time, in the scan's own order: of every row so many, of which some may be empty
  int part_tokens;           // at least, whatever the other rows are: a packed row is cut as if it was alone
  int shift;                 // -1, 0 or 1
  float scale, initial_factor, last_factor;
  // Of gated_scan_dot:
  GpuTimed with;           // as o: what o is multiplied by
  float* dots;             // [2 pieces, B, T, heads]
  float* crossing_states;  // [segments, heads, pieces, KEYS 64] as the threads have them: written, or with
  float* crossings;        // [segments, heads, pieces, kGpuThreads / 32] not null, read
};

// What joins the parts of a row: states [rows, parts, heads, K, V] are what gated_scan_states has left, and become what
// the parts begin with.
struct GpuJoin {
  float* states;
  const float *kept, *initial;              // initial: [rows, heads, K, V], or null: 0
  float* last;                              // the same, or null
  int rows, parts, heads, numbers, values;  // numbers: K V
  int kept_width, on_keys;                  // 1; with a gate for each channel K, on_keys, or V
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

// The gates' gradient where each channel has one: y dy - x dx, channel by channel, instead of the dots; on the keys' side
// y is q and x is k. The calls that compute dy and dx have the gates on their values, and leave Y of each.
struct GpuChannelGradient {
  GpuTimed y, dy, x, dx, g;  // g: float32 [B, T, heads, K]
  const float* crossings;    // [segments, heads, pieces, 4, 64]
  float* gradient;           // [B, T, heads, K]
  const long long* bounds;
  int tokens, heads, keys, pieces;
  int reverse;
};

constexpr float kCut = -60.0f;                                    // a gate below this leaves nothing
constexpr int kGpuChunk = 64, kGpuPiece = 64, kGpuThreads = 256;  // kGpuPiece: of the values
constexpr int kGpuSegment = 4 * kGpuChunk;
constexpr int kGpuGateHeads = 16;  // of gated_scan_gate_gradient: a block has so many heads, each with so many threads

constexpr int kGpuStages = 3;                // of inputs, with a gate for each head
constexpr int kGpuStateCopies = 2;           // in 16 bits: what is read and what is written
constexpr int kGpuSums = 3 * kGpuChunk + 4;  // numbers, of a chunk's gates

// Bytes of shared memory that a block takes.
constexpr int gpu_stage_bytes(int keys) { return kGpuChunk * (2 * keys + kGpuPiece) * 2; }
constexpr int gpu_shared_bytes(int keys) {
  return kGpuStages * gpu_stage_bytes(keys) + kGpuStateCopies * keys * kGpuPiece * 2 + 4 * kGpuChunk * 4 +
         2 * kGpuSums * 4;
}

// With a gate for each channel, of the keys or of the values.
constexpr int kGpuBlock = 16;  // tokens whose gates are added up
constexpr int gpu_channel_stage_bytes(int keys, bool on_keys) {
  return gpu_stage_bytes(keys) + kGpuChunk * (on_keys ? keys : kGpuPiece) * 4;
}
constexpr int gpu_channel_shared_bytes(int keys, bool on_keys) {
  const int width = on_keys ? keys : kGpuPiece, blocks = kGpuChunk / kGpuBlock;
  return 2 * gpu_channel_stage_bytes(keys, on_keys) + kGpuStateCopies * keys * kGpuPiece * 2 + kGpuChunk * width * 2 +
         blocks * width * 6 + blocks * 4;
}

// Where of stretches of `each` tokens, of all rows, a row's begin.
constexpr long long gpu_first_stretch(int each, long long row, long long first_token, int tokens, bool packed) {
  return packed ? first_token / each + row : row * ((tokens + each - 1) / each);
}
// In crossing_states and crossings; and in what is kept of each chunk.
constexpr long long gpu_first_segment(long long row, long long first_token, int tokens, bool packed) {
  return gpu_first_stretch(kGpuSegment, row, first_token, tokens, packed);
}
constexpr long long gpu_first_chunk(long long row, long long first_token, int tokens, bool packed) {
  return gpu_first_stretch(kGpuChunk, row, first_token, tokens, packed);
}

}  // namespace cortado::gated
