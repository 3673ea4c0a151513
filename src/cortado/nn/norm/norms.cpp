#include "cortado/nn/norm/norms.h"

#include "cortado/nn/autocast.h"
#include "cortado/nn/norm/op.h"

namespace cortado {

RmsNorm::RmsNorm(int64_t dim, double eps, int64_t groups) : Norm("RmsNorm"), eps_(eps), groups_(groups) {
  register_parameter(weight, "weight", at::ones({dim}), Role::kGain);
}

Tensor RmsNorm::forward(const Tensor& x) const { return rms_norm(x, weight, eps_, groups_); }

NormedSum RmsNorm::forward_of_sum(const Tensor& x, const Tensor& branch) const {
  return rms_norm_of_sum(x, branch, weight, eps_, groups_);
}

LayerNorm::LayerNorm(int64_t dim, double eps, bool with_bias) : Norm("LayerNorm"), eps_(eps) {
  register_parameter(weight, "weight", at::ones({dim}), Role::kGain);
  if (with_bias) register_parameter(bias, "bias", at::zeros({dim}), Role::kGain);
}

Tensor LayerNorm::forward(const Tensor& x) const {
  return for_products(at::layer_norm(x, weight.sizes(), weight, bias, eps_));
}

}  // namespace cortado
