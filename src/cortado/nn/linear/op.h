// Linear maps as an operator. Chooses the fastest implementation by rows, types, device, and the faster BLAS library.
#pragma once

#include <vector>

#include "cortado/nn/linear.h"

namespace cortado {

// x Wᵀ + b: x [..., in], weight [out, in], bias [out] or none -> [..., out]. A float32 x may have a 16-bit
// floating-point weight.
Tensor linear_map(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

// Applies several maps to one x and returns the results in order; work on x that they share is done once.
std::vector<Tensor> forward_all(const Tensor& x, const std::vector<const Linear*>& maps);

// Returns stream + map(x): a block's last map, added to the residual stream.
Tensor linear_onto(const Tensor& stream, const Tensor& x, const Linear& map);

}  // namespace cortado
