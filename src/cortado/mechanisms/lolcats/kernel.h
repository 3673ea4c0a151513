// Lolcats' feature map, and its two parts under one denominator, one pass over memory each; forward and backward.
// Float32 on the CPU. No torch here.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::lolcats_kernel {

using kernels::Parallel;
using kernels::Timed;

// Rows in a block, the unit of parallel work.
inline constexpr int64_t kBlockRows = 64;
// So few tokens of a sequence are multiplied by a matrix one by one; more of them in tiles.
inline constexpr int64_t kFewTokens = 4;

// y [rows, width] -> φ [rows, 2·width] = max([softmax(y), softmax(-y)], least), rows side by side.
struct Features {
  int64_t rows, width;
  float least;
  const float* y;
  float* phi;
  // Backward: reads phi and dphi.
  const float* dphi = nullptr;
  float* dy = nullptr;
};
void features(const Features& call, const Parallel& parallel);
void features_backward(const Features& call, const Parallel& parallel);

// The same of y = x W: x [B,T,H,inputs], contiguous W [H,inputs,width] -> phi [B,T,H,2·width], both float32 with a
// head's numbers side by side.
struct MappedFeatures {
  int64_t batch, tokens, heads, inputs, width;
  float least;
  Timed x;
  const float* weight;
  Timed phi;
};
void mapped_features(const MappedFeatures& call, const Parallel& parallel);

enum class Mixture : int32_t { kLolcats, kGated, kPlain };

// out = near's and far's outputs together, as parts.h's join_linear says. All float32; near, out and their gradients
// [B,T,H,V], far and its gradient [B,T,H,V+1] (the last: the denominator), a head's numbers side by side; lse, row_max
// and their gradients [B,T,H]; factor [H].
struct Join {
  int64_t batch, tokens, heads, values;
  Mixture mixture;
  Timed near, lse, row_max, far, out;
  const float* factor;
  // Backward: reads all but out. No data: not wanted.
  Timed dout = {}, dnear = {}, dlse = {}, drow_max = {}, dfar = {};
  float *dfactor = nullptr, *parts = nullptr;  // parts: room for parts_size
};
int64_t parts_size(const Join& call);
void join(const Join& call, const Parallel& parallel);
void join_backward(const Join& call, const Parallel& parallel);

// The same with far (not looked at in `join`) read from sums [B,H,F,V+1], contiguous, with phi [B,T,H,F] (a head's
// numbers side by side): far = φᵀ S.
struct JoinSums {
  Join join;
  int64_t features;
  Timed phi;
  const float* sums;
};
void join_sums(const JoinSums& call, const Parallel& parallel);

}  // namespace cortado::lolcats_kernel
