// One token of Mamba-2's layer between its two maps; see shared/one_token.h.
#pragma once

#include "cortado/nn/short_convolution.h"

namespace cortado {

struct Mamba2Sizes {
  int64_t inner;          // channels of x and z, summed over the heads
  int64_t heads, groups;  // groups of heads share B and C
  int64_t state;          // N
  double step_min;        // least Δ

  int64_t mixed() const { return inner + 2 * groups * state; }  // channels of x, B and C
};

// float32 [H]
struct Mamba2Dynamics {
  Tensor a_log, skip, step_bias;
};

// Whether gated_scan's step takes such heads.
bool mamba2_takes_one_token(const Mamba2Sizes& sizes);

// Maps the projections [rows, 1, inner + mixed + H] (z, then x, B and C, then Δ) to o + D x, [rows, 1, inner]. Updates
// "conv" and "scan_state".
Tensor mamba2_one_token(const Mamba2Sizes& sizes, const Mamba2Dynamics& dynamics, const ShortConvolution& convolution,
                        const Tensor& projected, SequenceState& state);

}  // namespace cortado
