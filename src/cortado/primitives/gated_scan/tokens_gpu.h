// The arguments of the GPU kernels that compute scans token by token in float32: sizes, strides and pointers. Read by
// C++ and by NVRTC.
#pragma once

#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

// The walks of kernel_gpu.h on float32 numbers whose rows are multiples of 16 bytes; K up to KEYS, any V. The delta
// rule is as in delta_scan/kernel_gpu.h. Forward: u = beta e with e = v - S'^T k. Backward, where q is k, k is q and v
// is do, the kernel writes dv = beta scale R^T k and subtracts k dv^T / scale from R.
struct GpuTokens {
  GpuScan scan;        // wide, with, dots and crossings are not read
  GpuTimed beta;       // float32 [B, T, h]
  GpuTimed written;    // e or dv; the delta rule only
  const float* bonus;  // [heads, channels with gates]; null without a bonus
  int factors;         // g is the factor on the state instead of its log
  // States at the ends of a row's segments of kGpuSegment tokens, [segments, heads, K, V], or null. `meets`: the state
  // before the segment's first token (in the walk's order), with that token's gate applied; else the state after its
  // last token.
  float* segments;
  int meets;
};

// dg_t = Y + sum of (y dy - x dx) over the tokens from t to the segment's end in the scan's order, Y = scale <S, R>
// there. One thread per channel of a segment.
struct GpuTokenGates {
  GpuTimed y, dy, x, dx, g;         // float32 [B, T, h, K]; g as the walks read it
  const float *states, *gradients;  // S and R from the walks: [segments, heads, K, V], or if across S^T and R^T
  float* gradient;                  // [B, T, heads, K]
  const long long* bounds;
  int tokens, heads, keys, values;
  int across, reverse, of_heads;  // of_heads: g is [B, T, h]
  float scale;
};

constexpr int kTokenPiece = 32, kTokenThreads = 128;  // values per block
constexpr int kTokenStage = 16;                       // tokens fetched together
constexpr int kTokenWidest = 256;                     // largest K

// The dimension that gates belong to: a whole head, its keys, or its values.
enum class Gates { kHead = 0, kKeys = 1, kValues = 2 };

constexpr int token_gate_width(int keys, Gates gates) {
  return gates == Gates::kHead ? 4 : gates == Gates::kKeys ? keys : kTokenPiece;
}
// Numbers per stage: q, k, v, gates and betas.
constexpr int token_stage_numbers(int keys, Gates gates) {
  return kTokenStage * (2 * keys + kTokenPiece + token_gate_width(keys, gates) + 4);
}
constexpr int gpu_token_shared_bytes(int keys, Gates gates) { return 2 * token_stage_numbers(keys, gates) * 4; }

}  // namespace cortado::gated
