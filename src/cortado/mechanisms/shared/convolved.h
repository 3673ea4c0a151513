// A linear map followed by a short convolution: an option of q, k and v in linear mechanisms.
#pragma once

#include "cortado/nn/linear/op.h"
#include "cortado/nn/short_convolution.h"

namespace cortado {

// Maps x [B,T,in] to [B,T,out]: a Linear, then a causal depthwise convolution if convolve() was called with taps > 0.
// Not a module itself: the mixer registers both parts under names of its choice.
class ConvolvedLinear {
 public:
  ConvolvedLinear() = default;
  // Registers the Linear as `owner`'s module `name`.
  ConvolvedLinear(torch::nn::Module& owner, const std::string& name, int64_t in, int64_t out, bool bias = false)
      : linear_(owner.register_module(name, std::make_shared<Linear>(in, out, bias))) {}

  // Registers the convolution beside the Linear, as NAME_conv; its tail in a state is "NAME_tail".
  static ConvolvedLinear beside(torch::nn::Module& owner, const std::string& name, int64_t in, int64_t out,
                                int64_t taps, bool bias = false) {
    ConvolvedLinear made(owner, name, in, out, bias);
    made.convolve(owner, name + "_conv", taps, name + "_tail");
    return made;
  }
  // Registers the convolution within the Linear, as NAME.conv; its tail in a state is "NAME_conv".
  static ConvolvedLinear within(torch::nn::Module& owner, const std::string& name, int64_t in, int64_t out,
                                int64_t taps, const std::string& activation, bool bias = false) {
    ConvolvedLinear made(owner, name, in, out, bias);
    made.convolve(*made.linear_, "conv", taps, name + "_conv", activation);
    return made;
  }

  // Registers the convolution as `owner`'s module `name`; its tail in a SequenceState is called `tail`.
  void convolve(torch::nn::Module& owner, const std::string& name, int64_t taps, std::string tail,
                const std::string& activation = "silu") {
    if (taps == 0) return;
    tail_ = std::move(tail);
    const int64_t width = linear_->weight.size(0);
    conv_ = owner.register_module(name, std::make_shared<ShortConvolution>(width, taps, false, activation));
  }

  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
    return convolved(linear_->forward(x), batch, state);
  }
  // The definition: dense, from the zero state.
  Tensor reference(const Tensor& x) const { return reference_of(linear_->forward(x)); }

  // Convolves y, the output of the linear map.
  Tensor convolved(const Tensor& y, const Batch& batch, SequenceState* state) const {
    return conv_ ? conv_->forward(y, batch, state, tail_) : y;
  }
  // One token of each row, rows `y_row` apart; only with a convolution.
  void convolve_one(const float* y, int64_t y_row, SequenceState& state, float* to) const {
    conv_->forward_one(y, y_row, state, tail_, to);
  }
  Tensor reference_of(const Tensor& y) const { return conv_ ? conv_->reference(y) : y; }

  const Linear& linear() const { return *linear_; }
  int64_t taps() const { return conv_ ? conv_->weight.size(1) : 0; }
  void start_as_identity() const {
    if (conv_) conv_->start_as_identity();
  }

  void declare(StateLayout& layout) const {
    if (conv_) conv_->declare(layout, tail_);
  }

 private:
  std::shared_ptr<Linear> linear_;
  std::shared_ptr<ShortConvolution> conv_;
  std::string tail_;
};

// silu(convolution(x)), or silu(x) without a convolution: shared by `mamba` and `mamba2`.
inline Tensor convolve(const std::shared_ptr<ShortConvolution>& convolution, const Tensor& x, const Batch& batch,
                       SequenceState* state) {
  return convolution ? convolution->forward(x, batch, state, "conv") : at::silu(x);
}
inline Tensor convolve_reference(const std::shared_ptr<ShortConvolution>& convolution, const Tensor& x) {
  return convolution ? convolution->reference(x) : at::silu(x);
}

struct Qkv {
  Tensor q, k, v;
};

// The convolved maps of queries, keys and values.
struct ConvolvedQkv {
  ConvolvedLinear q, k, v;

  Qkv forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
    const auto mapped = forward_all(x, {&q.linear(), &k.linear(), &v.linear()});
    return convolved({mapped[0], mapped[1], mapped[2]}, batch, state);
  }
  // Convolves the outputs of the linear maps.
  Qkv convolved(const Qkv& in, const Batch& batch, SequenceState* state) const {
    return {q.convolved(in.q, batch, state), k.convolved(in.k, batch, state), v.convolved(in.v, batch, state)};
  }
  Qkv reference_of(const Qkv& in) const { return {q.reference_of(in.q), k.reference_of(in.k), v.reference_of(in.v)}; }
  Qkv reference(const Tensor& x) const { return {q.reference(x), k.reference(x), v.reference(x)}; }
  void declare(StateLayout& layout) const {
    for (const ConvolvedLinear* map : {&q, &k, &v}) map->declare(layout);
  }
  void start_as_identity() const {
    for (const ConvolvedLinear* map : {&q, &k, &v}) map->start_as_identity();
  }
};

}  // namespace cortado
