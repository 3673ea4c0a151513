// What Mamba-2's layer computes between its two maps, except the gate and the norm.
#pragma once

#include "cortado/nn/batch.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

struct Mamba2Shape {
  int64_t inner;          // channels of x and z, summed over the heads
  int64_t heads, groups;  // groups of heads share B and C
  int64_t state;          // N
  double step_min;        // least Δ

  int64_t mixed() const { return inner + 2 * groups * state; }  // channels of x, B and C
};

// [H], wide
struct Mamba2Dynamics {
  Tensor a_log, skip, step_bias;
};

// Arguments of the gated scan: q = C, k = B, v = Δ x, g = -exp(A_log) Δ with Δ = softplus(step + bias), or step_min if
// that is more. convolved [B,T,mixed]; step [B,T,H].
struct Mamba2Operands {
  Tensor x, q, k, v, g;
};
Mamba2Operands mamba2_operands(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics, const Tensor& convolved,
                               const Tensor& step);

// o + D x for o, x [B,T,H,P], as [B,T,inner].
Tensor with_skip(const Tensor& o, const Tensor& x, const Mamba2Dynamics& dynamics);

// Maps the projections [B,T,inner + mixed + H] (z, then x, B and C, then step) to o + D x, [B,T,inner]. Updates "conv"
// and "scan_state". convolution: or null.
Tensor mamba2_scan(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics,
                   const std::shared_ptr<ShortConvolution>& convolution, const Tensor& projected, const Batch& batch,
                   SequenceState* state);

}  // namespace cortado
