#include "cortado/nn/short_convolution.h"

#include "cortado/nn/initialization.h"
#include "cortado/nn/wide.h"
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

void ShortConvolution::add_state(SequenceState& state, const std::string& name, int64_t rows,
                                 const at::TensorOptions& options) const {
  state.add(name, at::zeros({rows, weight.size(1) - 1, weight.size(0)}, scan_options(options)));
}

int64_t ShortConvolution::state_bytes() const { return (weight.size(1) - 1) * weight.size(0) * 4; }

double ShortConvolution::flops_per_token() const { return 2.0 * static_cast<double>(weight.numel()); }

}  // namespace cortado
