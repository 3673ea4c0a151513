#include "cortado/nn/short_convolution.h"

#include "cortado/nn/initialization.h"
#include "cortado/primitives/short_conv/op.h"

namespace cortado {

ShortConvolution::ShortConvolution(int64_t dim, int64_t taps, bool with_bias, std::string activation)
    : torch::nn::Module("ShortConvolution"), activation_(std::move(activation)) {
  weight = register_parameter("weight", at::empty({dim, taps}));
  lecun_normal(weight, taps);
  if (with_bias) bias = register_parameter("bias", at::zeros({dim}));
}

Tensor ShortConvolution::forward(const Tensor& x, const Batch& batch, SequenceState* state,
                                 const std::string& name) const {
  auto [y, last] = short_conv(x, weight, bias, activation_, start_of(state, name), batch.cu_seqlens);
  if (state) state->at(name) = last;
  return y;
}

Tensor ShortConvolution::reference(const Tensor& x) const {
  return std::get<0>(short_conv_reference(x, weight, bias, activation_));
}

void ShortConvolution::declare(StateLayout& layout, const std::string& name) const {
  layout.tail(name, {weight.size(1) - 1, weight.size(0)});
}

}  // namespace cortado
