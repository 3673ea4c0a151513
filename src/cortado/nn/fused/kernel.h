// What lies between a model's matrix products and scans, one pass over memory each: RMS norm, gated SiLU, the gates of
// the RG-LRU, rotary positions; forward and backward. Float32 arithmetic on the CPU. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::fused {

using kernels::Element;
using kernels::Parallel;

// A matrix: rows `stride` elements apart, a row's elements side by side. No data: not given, or not wanted.
struct Rows {
  void* data = nullptr;
  Element type = Element::kFloat32;
  int64_t stride = 0;
};

// Rows are worked on in blocks of so many. What is summed over all rows is summed within blocks and then over the
// blocks: the same on any number of threads.
inline constexpr int64_t kBlock = 64;

// The number of floats that `parts` of a backward below needs.
inline int64_t parts_size(int64_t rows, int64_t width) { return (rows + kBlock - 1) / kBlock * width; }

// y = x / rms(x) ⊙ weight over every one of `groups` equal parts of a row; scale [rows, groups] = 1 / rms. weight
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

// What the RG-LRU's scan takes (nn/rg_lru/rg_lru.h): log_a = σ(r) slope and b = √(1 - a²) σ(i) x, where rows that are `first`
// (bytes; null: none) keep all, b = σ(i) x. slope [width]. The square root's slope is held at `largest_slope`.
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
// d] (in, out) with width = blocks · d; biases and Λ [width], slope = -sharpness softplus(Λ); position [rows]: 0 where
// the token is the first.
struct RgLruStep {
  int64_t rows, width, blocks;
  float sharpness;
  Rows x;
  const float *r_weight, *r_bias, *i_weight, *i_bias, *lambda;
  const int64_t* position;
  const float* start;  // [rows, width]
  float* h;            // likewise
};
void rg_lru_step(const RgLruStep& call, const Parallel& parallel);

// The first 2·half channels of every head turned by its token's angles, the others copied: pairs (i, i + half) become
// (c x_i - s x_{i+half}, c x_{i+half} + s x_i), s times `direction`, 1 or, for the way back, -1. y is contiguous
// [B,T,H,width]; cos and sin [B|1,T,half].
struct Rotary {
  int64_t batch, tokens, heads, width, half;
  kernels::Timed x;  // a head's channels side by side
  Rows y;
  const float *cos, *sin;
  bool same_rows;  // one table for all batch rows
  float direction;
};
void rotary(const Rotary& call, const Parallel& parallel);

}  // namespace cortado::fused
