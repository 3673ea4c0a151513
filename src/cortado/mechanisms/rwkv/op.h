// Where RWKV-7's layers are computed.
#pragma once

#include <functional>

#include "cortado/nn/batch.h"

namespace cortado::rwkv7 {

// Computes a layer on x [B,T,D] by the kernel (fused.h), or by operators.
Tensor compute(const char* layer, const Tensor& x, const Batch& batch, const std::function<Tensor()>& by_kernel,
               const std::function<Tensor()>& by_operators);

}  // namespace cortado::rwkv7
