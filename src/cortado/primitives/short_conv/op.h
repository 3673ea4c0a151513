// short_conv: depthwise causal convolution with a few taps and a carried tail.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace cortado {

using at::Tensor;

// x [B,T,D], weight [D,W], bias [D]: y_t = act(Σ_i weight[:, W-1-i] ⊙ x_{t-i} + bias), act "none" or "silu".
// State [B|N,W-1,D]: the last W-1 inputs, oldest first. Returns (y, final_state).
std::tuple<Tensor, Tensor> short_conv(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {},
                                      std::string_view activation = "none",
                                      const std::optional<Tensor>& initial_state = {},
                                      const std::optional<Tensor>& cu_seqlens = {});

// The definition, tap by tap; differentiable by autograd.
std::tuple<Tensor, Tensor> short_conv_reference(const Tensor& x, const Tensor& weight,
                                                const std::optional<Tensor>& bias = {},
                                                std::string_view activation = "none",
                                                const std::optional<Tensor>& initial_state = {},
                                                const std::optional<Tensor>& cu_seqlens = {});

}  // namespace cortado
