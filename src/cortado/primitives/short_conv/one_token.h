// short_conv for one token of each row on the CPU, on plain memory: not differentiable.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// x and y [rows, D], float32 rows `x_row` and D numbers apart; weight [D,W], bias [D]; tail [rows,W-1,D], float32 and
// contiguous. Returns the new tail.
Tensor short_conv_one_token(const float* x, int64_t x_row, const Tensor& weight, const OptionalTensor& bias, bool silu,
                            const Tensor& tail, float* y);

}  // namespace cortado
