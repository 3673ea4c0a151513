// Linear maps as an operator, by whatever is fastest for the call: rows, types, device, and which library is faster.
#pragma once

#include <vector>

#include "cortado/nn/linear.h"

namespace cortado {

// x Wᵀ + b: x [..., in], weight [out, in], bias [out] or none -> [..., out]. A float32 x may meet a weight in 16-bit
// floating point.
Tensor linear_map(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);

// Several maps of one x, in their order: work that they share is done once.
std::vector<Tensor> forward_all(const Tensor& x, const std::vector<const Linear*>& maps);

// stream + map(x): a block's last map, added to the residual stream.
Tensor linear_onto(const Tensor& stream, const Tensor& x, const Linear& map);

}  // namespace cortado
