// The kernel of latte_scan, for torch's tensors.
#pragma once

#include <vector>

#include "cortado/primitives/latte_scan/op.h"

namespace cortado::latent {

// Whether the kernel computes with sums of this type on these tensors: float32 sums, ordinary CPU tensors.
bool kernel_takes(at::ScalarType type, const Tensor& query, const Tensor& theta, const Tensor& v,
                  const LatteState& start);

// `bounds` of packed sequences, or null.
LatteResult latte_by_kernel(const Tensor& query, const Tensor& theta, const Tensor& v, bool softmax,
                            const LatteState& start, const std::vector<int64_t>* bounds);

}  // namespace cortado::latent
