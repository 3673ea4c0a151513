// What `mamba` and `mamba2` share: the convolution that may be left out.
#pragma once

#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// silu(convolution(x)), or silu(x) without one.
inline Tensor convolve(const std::shared_ptr<ShortConvolution>& convolution, const Tensor& x, const Batch& batch,
                       SequenceState* state) {
  return convolution ? convolution->forward(x, batch, state, "conv") : at::silu(x);
}
inline Tensor convolve_reference(const std::shared_ptr<ShortConvolution>& convolution, const Tensor& x) {
  return convolution ? convolution->reference(x) : at::silu(x);
}

}  // namespace cortado
