// The elementwise operations between a model's matrix products and scans, each in one pass over memory: RMS norm, gated
// SiLU, RG-LRU gates, rotary positions; forward and backward. Float32 arithmetic on the CPU. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::fused {

using kernels::Element;
using kernels::Parallel;

// A matrix with contiguous rows, `stride` elements apart. data null: input not given, or output not wanted.
struct Rows {
  void* data = nullptr;
  Element type = Element::kFloat32;
  int64_t stride = 0;
};

// Rows per block. Sums over all rows are computed within blocks and then over the blocks, so that they are
// bit-identical on any number of threads.
inline constexpr int64_t kBlock = 64;

// The number of floats of `parts` in the backward functions below.
inline int64_t parts_size(int64_t rows, int64_t width) { return (rows + kBlock - 1) / kBlock * width; }

// y = x / rms(x) ⊙ weight, for each of a row's `groups` equal parts alone; scale [rows, groups] = 1 / rms. weight
// [width].
struct RmsNorm {
  int64_t rows, width, groups;
  float eps;
  Rows x, y;
  const float* weight;
  float* scale;
  // Backward: reads x, scale and dy.
  Rows dy = {}, dx = {};
  float *dweight = nullptr, *parts = nullptr;
};
void rms_norm(const RmsNorm& call, const Parallel& parallel);
void rms_norm_backward(const RmsNorm& call, const Parallel& parallel);

// y = silu(gate) ⊙ up
struct GatedSilu {
  int64_t rows, width;
  Rows gate, up, y;
  // Backward: reads gate, up and dy.
  Rows dy = {}, dgate = {}, dup = {};
};
void gated_silu(const GatedSilu& call, const Parallel& parallel);
void gated_silu_backward(const GatedSilu& call, const Parallel& parallel);

// Inputs of the RG-LRU's scan (nn/rg_lru/rg_lru.h): log_a = σ(r) slope and b = √(1 - a²) σ(i) x. Where `first` (bytes;
// null: nowhere) marks a sequence's first token, b = σ(i) x. slope [width]. The derivative of the square root is
// limited to `largest_slope`.
struct RgLruGates {
  int64_t rows, width;
  Rows r, i, x;
  const float* slope;
  const uint8_t* first;
  float largest_slope;
  Rows log_a, b;  // float32
  // Backward: reads r, i, x and the gradients of log_a and b.
  Rows dlog_a = {}, db = {}, dr = {}, di = {}, dx = {};
  float *dslope = nullptr, *parts = nullptr;
};
void rg_lru_gates(const RgLruGates& call, const Parallel& parallel);
void rg_lru_gates_backward(const RgLruGates& call, const Parallel& parallel);

// One token of the whole RG-LRU: the gates' block-diagonal products, then h = a start + b as above. Weights [blocks, d,
// d] (in, out) with width = blocks · d; biases and Λ [width], slope = -sharpness softplus(Λ); position [rows]: 0 for a
// sequence's first token.
struct RgLruStep {
  int64_t rows, width, blocks;
  float sharpness;
  Rows x;
  const float *r_weight, *r_bias, *i_weight, *i_bias, *lambda;
  const int64_t* position;
  const float* start;  // [rows, width]
  float* h;            // [rows, width]
};
void rg_lru_step(const RgLruStep& call, const Parallel& parallel);

// Rotates the first 2·half channels of every head by its token's angles and copies the others. A pair (x_i, x_{i+half})
// becomes (c x_i - s x_{i+half}, c x_{i+half} + s x_i), with s times `direction`: 1, or -1 for the backward. y is
// contiguous [B,T,H,width]; cos and sin [B|1,T,half].
struct Rotary {
  int64_t batch, tokens, heads, width, half;
  kernels::Timed x;  // contiguous channels within a head
  Rows y;
  const float *cos, *sin;
  bool same_rows;  // one table for all batch rows
  float direction;
};
void rotary(const Rotary& call, const Parallel& parallel);

}  // namespace cortado::fused
