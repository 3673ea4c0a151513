// One token of Mamba-2's layer between its two maps; see shared/one_token.h.
#pragma once

#include "cortado/mechanisms/mamba2/op.h"

namespace cortado {

// Whether gated_scan's step takes such heads.
bool mamba2_takes_one_token(const Mamba2Shape& sizes);

// Maps the projections [rows, 1, inner + mixed + H] (z, then x, B and C, then Δ) to o + D x, [rows, 1, inner]. Updates
// "conv" and "scan_state".
Tensor mamba2_one_token(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics, const ShortConvolution& convolution,
                        const Tensor& projected, SequenceState& state);

}  // namespace cortado
