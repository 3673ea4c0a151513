// Lolcats' feature map, and the joining of its two parts under one denominator; each is one pass over memory, forward
// and backward. Float32 on the CPU. Does not include torch.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::lolcats_kernel {

using kernels::Parallel;
using kernels::Timed;

// Rows in a block, the unit of parallel work.
inline constexpr int64_t kBlockRows = 64;
// Up to this many tokens of a sequence are multiplied by a matrix one by one; more are multiplied in tiles.
inline constexpr int64_t kFewTokens = 4;

// φ [rows, 2·width] = max([softmax(y), softmax(-y)], least) of y [rows, width], both contiguous.
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

// φ of y = x W: x [B,T,H,inputs], W [H,inputs,width] (contiguous) -> phi [B,T,H,2·width]. All float32; the numbers of
// one head are contiguous in x and phi.
struct MappedFeatures {
  int64_t batch, tokens, heads, inputs, width;
  float least;
  Timed x;
  const float* weight;
  Timed phi;
};
void mapped_features(const MappedFeatures& call, const Parallel& parallel);

enum class Mixture : int32_t { kLolcats, kGated, kPlain };

// Joins near and far as op.h's join_linear() says. All float32. near, out and their gradients are [B,T,H,V]; far and
// its gradient [B,T,H,V+1], the last number being the denominator; the numbers of one head are contiguous. lse, row_max
// and their gradients are [B,T,H]; factor is [H].
struct Join {
  int64_t batch, tokens, heads, values;
  Mixture mixture;
  Timed near, lse, row_max, far, out;
  const float* factor;
  // Backward: reads everything except out. Gradients without memory are not computed.
  Timed dout = {}, dnear = {}, dlse = {}, drow_max = {}, dfar = {};
  float *dfactor = nullptr, *parts = nullptr;  // parts: parts_size floats of scratch memory
};
int64_t parts_size(const Join& call);
void join(const Join& call, const Parallel& parallel);
void join_backward(const Join& call, const Parallel& parallel);

// As join(), with far = φᵀ S computed from phi [B,T,H,F] (the numbers of one head contiguous) and sums [B,H,F,V+1]
// (contiguous). `join.far` is ignored.
struct JoinSums {
  Join join;
  int64_t features;
  Timed phi;
  const float* sums;
};
void join_sums(const JoinSums& call, const Parallel& parallel);

}  // namespace cortado::lolcats_kernel
