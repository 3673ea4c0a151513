// The scans token by token in float32 on a GPU: sizes, strides and pointers. Read by C++ and by NVRTC.
#pragma once

#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

// kernel_gpu.h's walks with float32 numbers, in rows of whole pieces of 16 bytes; K up to KEYS, any V. The delta rule's
// are delta_scan/kernel_gpu.h's: forwards u = beta e with e = v - S'^T k, and from behind, where q is k, k is q, v is do
// and what is written is dv = beta scale R^T k, of which R loses k dv^T / scale.
struct GpuTokens {
  GpuScan scan;        // wide, with, dots and crossings are not read
  GpuTimed beta;       // float32 [B, T, h]
  GpuTimed written;    // e; of other rules not
  const float* bonus;  // [heads, channels with gates]; of other rules not
  int factors;         // g is what multiplies the state, not its log
  // Where segments of kGpuSegment tokens of a row end, [segments, heads, K, V], or null: `meets`, the state in front of the
  // segment's first token on the way, with that token's gate; else the one behind its last.
  float* segments;
  int meets;
};

// dg_t = Y + sum of (y dy - x dx) over the tokens from t to the segment's end on the scan's way, Y = scale <S, R> there: a
// thread has a channel of a segment.
struct GpuTokenGates {
  GpuTimed y, dy, x, dx, g;         // float32 [B, T, h, K]; g as the walks read it
  const float *states, *gradients;  // S and R as the walks leave them: [segments, heads, K, V], or across S^T and R^T
  float* gradient;                  // [B, T, heads, K]
  const long long* bounds;
  int tokens, heads, keys, values;
  int across, reverse, of_heads;  // of_heads: g is [B, T, h]
  float scale;
};

constexpr int kTokenPiece = 32, kTokenThreads = 128;  // values of a block
constexpr int kTokenStage = 16;                       // tokens that are fetched together
constexpr int kTokenWidest = 256;                     // of the keys

// What gates belong to: all of a head, its keys or its values.
enum class Gates { kHead = 0, kKeys = 1, kValues = 2 };

constexpr int token_gate_width(int keys, Gates gates) {
  return gates == Gates::kHead ? 4 : gates == Gates::kKeys ? keys : kTokenPiece;
}
// Numbers of one stage: q, k, v, gates and betas.
constexpr int token_stage_numbers(int keys, Gates gates) {
  return kTokenStage * (2 * keys + kTokenPiece + token_gate_width(keys, gates) + 4);
}
constexpr int gpu_token_shared_bytes(int keys, Gates gates) { return 2 * token_stage_numbers(keys, gates) * 4; }

}  // namespace cortado::gated
