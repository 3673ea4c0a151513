// The short convolution before a linear mechanism's queries, keys and values.
#pragma once

#include <string>

#include "cortado/nn/batch.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/module.h"
#include "cortado/nn/state_layout.h"
#include "cortado/primitives/short_conv/one_token.h"
#include "cortado/primitives/short_conv/op.h"

namespace cortado {

// y_t = act(Σ_i weight[:, W-1-i] ⊙ x_{t-i} + bias) over the channels of x [B,T,D], causal. weight [D,W], initialised
// N(0, 1/W). Its tensor `name` in a SequenceState holds the last W - 1 inputs in float32.
class ShortConvolution : public Module {
 public:
  ShortConvolution(int64_t dim, int64_t taps, bool with_bias = false, std::string activation = "silu")
      : Module("ShortConvolution"), activation_(std::move(activation)) {
    register_parameter(weight, "weight", at::empty({dim, taps}), Role::kMatrix);
    lecun_normal(weight, taps);
    if (with_bias) register_parameter(bias, "bias", at::zeros({dim}), Role::kGain);
  }

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state, const std::string& name) const {
    auto [y, last] =
        short_conv(x, weight, bias, activation_, batch.tail_before(x, start_of(state, name)), batch.cu_seqlens);
    if (state) state->at(name) = last;
    return y;
  }
  // One token of each row, as short_conv_one_token(): x and y [rows, D].
  void forward_one(const float* x, int64_t x_row, SequenceState& state, const std::string& name, float* y) const {
    Tensor& tail = state.at(name);
    tail = short_conv_one_token(x, x_row, weight, bias, activation_ == "silu", tail, y);
  }
  // The definition: dense, from zero.
  Tensor reference(const Tensor& x) const { return std::get<0>(short_conv_reference(x, weight, bias, activation_)); }

  // Initialises to y = act(x + bias): the token's own tap is 1, the earlier ones are 0.
  void start_as_identity() const {
    const at::NoGradGuard no_grad;
    weight.zero_().select(1, weight.size(1) - 1).fill_(1);
  }

  void declare(StateLayout& layout, const std::string& name) const {
    layout.tail(name, {weight.size(1) - 1, weight.size(0)});
  }

  Tensor weight;
  OptionalTensor bias;

 private:
  std::string activation_;
};

}  // namespace cortado
