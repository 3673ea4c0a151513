// What `mamba` and `mamba2` share: the step size's start, and the convolution that may be left out.
#pragma once

#include <cmath>

#include "cortado/mechanisms/shared/heads.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// The bias before the softplus that makes step sizes start log-uniform in [0.001, 0.1]: softplus⁻¹(Δ), [count].
inline Tensor initial_step_bias(int64_t count) {
  const Tensor step = at::empty({count}).uniform_(std::log(1e-3), std::log(0.1)).exp().clamp_min(1e-4);
  return step + (-at::expm1(-step)).log();
}

// silu(convolution(x)), or silu(x) without one.
inline Tensor convolve(const std::shared_ptr<ShortConvolution>& convolution, const Tensor& x, const Batch& batch,
                       SequenceState* state) {
  return convolution ? convolution->forward(x, batch, state, "conv") : at::silu(x);
}
inline Tensor convolve_reference(const std::shared_ptr<ShortConvolution>& convolution, const Tensor& x) {
  return convolution ? convolution->reference(x) : at::silu(x);
}

}  // namespace cortado
