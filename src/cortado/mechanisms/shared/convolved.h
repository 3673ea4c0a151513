// A linear map with a short convolution behind it: an option of the queries, keys and values of linear mechanisms.
#pragma once

#include "cortado/nn/linear.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// x [B,T,in] -> [B,T,out]: a Linear, then a causal depthwise convolution if `convolve` has been called with taps > 0.
// Not a module itself: the mixer that owns both parts says where among its modules they are and what they are called.
class ConvolvedLinear {
 public:
  ConvolvedLinear() = default;
  // The Linear is `owner`'s module `name`.
  ConvolvedLinear(torch::nn::Module& owner, const std::string& name, int64_t in, int64_t out, bool bias = false)
      : linear_(owner.register_module(name, std::make_shared<Linear>(in, out, bias))) {}

  // The convolution is `owner`'s module `name`; in a SequenceState its tail is called `tail`.
  void convolve(torch::nn::Module& owner, const std::string& name, int64_t taps, std::string tail,
                const std::string& activation = "silu") {
    if (taps == 0) return;
    tail_ = std::move(tail);
    const int64_t width = linear_->weight.size(0);
    conv_ = owner.register_module(name, std::make_shared<ShortConvolution>(width, taps, false, activation));
  }

  Linear& linear() const { return *linear_; }
  bool convolved() const { return conv_ != nullptr; }

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
    const Tensor y = linear_->forward(x);
    return conv_ ? conv_->forward(y, batch, state, tail_) : y;
  }
  // By the definition, dense, from zero.
  Tensor reference(const Tensor& x) const {
    const Tensor y = linear_->forward(x);
    return conv_ ? conv_->reference(y) : y;
  }

  void declare(StateLayout& layout) const {
    if (conv_) conv_->declare(layout, tail_);
  }

 private:
  std::shared_ptr<Linear> linear_;
  std::shared_ptr<ShortConvolution> conv_;
  std::string tail_;
};

}  // namespace cortado
