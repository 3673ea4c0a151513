// The short convolution before a linear mechanism's queries, keys and values.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "cortado/nn/batch.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

// y_t = act(Σ_i weight[:, W-1-i] ⊙ x_{t-i} + bias) over the channels of x [B,T,D], causal. weight [D,W], N(0, 1/W).
// In a SequenceState its tail, the last W - 1 inputs in float32, is called `name`.
class ShortConvolution : public torch::nn::Module {
 public:
  ShortConvolution(int64_t dim, int64_t taps, bool with_bias = false, std::string activation = "silu");

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state, const std::string& name) const;
  // By the definition, dense, from zero.
  Tensor reference(const Tensor& x) const;

  void declare(StateLayout& layout, const std::string& name) const;

  Tensor weight;
  std::optional<Tensor> bias;

 private:
  std::string activation_;
};

}  // namespace cortado
