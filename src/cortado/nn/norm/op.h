// The RMS norm as an operator: x·rsqrt(mean x² + eps) in float32 (float64 for float64), rounded to x's type, times the
// weight. Differentiable once.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// x [..., D], weight [D] -> [..., D]. Each of `groups` equal parts of D has its own mean.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups);

// x + branch (x if branch is undefined), and its norm.
struct NormedSum {
  Tensor sum, y;
};
NormedSum rms_norm_of_sum(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, int64_t groups);

}  // namespace cortado
