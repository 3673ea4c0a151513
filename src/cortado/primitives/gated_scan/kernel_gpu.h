// The gated scan's kernel on a GPU, forward, and by the same body every gradient but the gates': sizes, strides and
// pointers. Read by C++ and by NVRTC: nothing is included.
#pragma once

namespace cortado::gated {

// A tensor [B, T, heads, width] in memory, its last dimension without gaps; strides in numbers. Packed: B = 1.
struct GpuTimed {
  void* data;
  long long batch, token, head;
  int heads;  // divides the scan's
};

// o_t = scale S_t^T q_t,  S_t = exp(g_{t + shift}) S_{t-1} + k_t v_t^T, with a gate for each head (0 where there is none),
// from the first token on, or in reverse from the last one on: then S_{t-1} is S_{t+1}. What comes out of
//   (q, k, v)                 is the read
//   (do, v, k)                dq                              the states S^T
//   (v, do, q) from behind    dk, with the gate of the token that comes next in the scan's own order (shift 1, in reverse -1)
//   (k, q, do) from behind    dv, likewise; initial is then dS_T, and last R_0, of which exp(g_0) R_0 is dS_0
// Few heads of long rows fill a GPU only in parts of their time: gated_scan_states computes what each part leaves of
// nothing, gated_scan_join from that what each part begins with, and gated_scan goes through all parts at once.
struct GpuScan {
  GpuTimed q, k, v, o;      // 16-bit numbers; o has all heads
  GpuTimed g;               // float32 [B, T, heads], width 1; data null: none
  const float* initial;     // [rows, parts, heads, K, V], or null: 0
  float* last;              // the same, or null
  float* kept;              // of gated_scan_states: [rows, parts, heads], how much of a state lasts through a part
  const long long* bounds;  // packed sequences: row n has tokens bounds[n] .. bounds[n + 1]; null: rows of T tokens
  int tokens, heads, values;
  int parts, part_tokens;  // in the scan's own order; the last part of a row may have fewer, or none
  int shift;               // -1, 0 or 1
  float scale;
};

// What joins the parts of a row: states [rows, parts, heads, K, V] are what gated_scan_states has left, and become what
// the parts begin with.
struct GpuJoin {
  float* states;
  const float *kept, *initial;      // initial: [rows, heads, K, V], or null: 0
  float* last;                      // the same, or null
  int rows, parts, heads, numbers;  // numbers: K V
};

constexpr int kGpuChunk = 64, kGpuPiece = 32, kGpuThreads = 128, kGpuStages = 3;  // kGpuPiece: of the values

// Bytes of shared memory that a block takes.
constexpr int gpu_stage_bytes(int keys) { return kGpuChunk * (2 * keys * 2 + kGpuPiece * 2 + 4); }
constexpr int gpu_shared_bytes(int keys) {
  return kGpuStages * gpu_stage_bytes(keys) + keys * kGpuPiece * 2 + 3 * kGpuChunk * 4;
}

}  // namespace cortado::gated
