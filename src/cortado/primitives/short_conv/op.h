// short_conv: depthwise causal convolution with a few taps; its last inputs are carried as a state.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// x [B,T,D], weight [D,W], bias [D]: y_t = act(Σ_i weight[:, W-1-i] ⊙ x_{t-i} + bias), act "none" or "silu".
// State [B|N,W-1,D]: the last W-1 inputs, oldest first. Returns (y, final_state).
TensorTuple<2> short_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {},
                          std::string_view activation = "none", const OptionalTensor& initial_state = {},
                          const OptionalTensor& cu_seqlens = {});

// The definition, tap by tap; differentiable by autograd.
TensorTuple<2> short_conv_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {},
                                    std::string_view activation = "none", const OptionalTensor& initial_state = {},
                                    const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
