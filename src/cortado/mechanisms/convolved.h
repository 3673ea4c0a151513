// A linear map with a short convolution behind it: an option of the queries, keys and values of linear mechanisms.
#pragma once

#include "cortado/nn/linear.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// x [B,T,in] -> [B,T,out]: a Linear (its own parameters: "weight"), then a causal depthwise convolution ("conv.weight")
// if taps > 0. In a SequenceState its tail is called `tail`.
class ConvolvedLinear : public Linear {
 public:
  ConvolvedLinear(int64_t in, int64_t out, int64_t taps, const std::string& activation, std::string tail)
      : Linear(in, out), tail_(std::move(tail)) {
    if (taps > 0) {
      conv_ = register_module("conv", std::make_shared<ShortConvolution>(out, taps, false, activation));
    }
  }

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
    const Tensor y = Linear::forward(x);
    return conv_ ? conv_->forward(y, batch, state, tail_) : y;
  }
  // By the definition, dense, from zero.
  Tensor reference(const Tensor& x) const {
    const Tensor y = Linear::forward(x);
    return conv_ ? conv_->reference(y) : y;
  }

  void add_state(SequenceState& state, int64_t rows, const at::TensorOptions& options) const {
    if (conv_) conv_->add_state(state, tail_, rows, options);
  }
  int64_t state_bytes() const { return conv_ ? conv_->state_bytes() : 0; }
  double flops_per_token() const {
    return 2.0 * static_cast<double>(weight.numel()) + (conv_ ? conv_->flops_per_token() : 0.0);
  }

 private:
  std::string tail_;
  std::shared_ptr<ShortConvolution> conv_;
};

}  // namespace cortado
