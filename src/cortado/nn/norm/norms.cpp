#include "cortado/nn/norm/norms.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/nn/autocast.h"
#include "cortado/nn/fused/ops.h"
#include "cortado/nn/norm/on_gpu.h"
#include "cortado/nn/token/on_gpu.h"

namespace cortado {
namespace {

Tensor inverse_rms(const Tensor& x, double eps) { return at::rsqrt(at::mean(at::square(x), -1, true).add_(eps)); }

// x -> x/rms(x), with a backward of its own: autograd's would keep and read three more tensors of x's size.
// With y = x·r, r = (mean x² + eps)^-1/2:  dx = r·(dy - y·mean(dy·y)).
class NormalizeRms : public torch::autograd::Function<NormalizeRms> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, double eps) {
    const Tensor scale = inverse_rms(x, eps);
    const Tensor y = x * scale;
    context->save_for_backward({y, scale});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& y = saved[0];
    const Tensor along = at::mean(gradients[0] * y, -1, true);
    return {at::addcmul(gradients[0], y, along, -1).mul_(saved[1]), Tensor()};
  }
};

}  // namespace

RmsNorm::RmsNorm(int64_t dim, double eps, int64_t groups) : Norm("RmsNorm"), eps_(eps), groups_(groups) {
  register_parameter(weight, "weight", at::ones({dim}), Role::kGain);
}

Tensor RmsNorm::forward(const Tensor& x) const {
  // Shorter types are rounded before they meet the weight, as in the Llamas.
  if (x.scalar_type() == at::kFloat && fused::takes({x, weight})) return fused::rms_norm(x, weight, eps_, groups_);
  if (groups_ == 1 && norm::gpu_takes(x, {}, weight)) return norm::norm_of_sum(x, {}, weight, eps_).y;
  const bool plain = groups_ == 1 && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat;
  if (plain && x.is_cuda()) return for_products(at::rms_norm(x, weight.sizes(), weight, eps_));  // torch's has kernels
  if (x.is_cuda() && token::gpu_norms(x, weight, groups_)) return token::rms_norm(x, {}, weight, eps_, groups_).y;
  const Tensor same = groups_ == 1 ? x : x.unflatten(-1, {groups_, x.size(-1) / groups_});
  if (x.is_cuda() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf)) {
    const Tensor y = at::rms_norm(same, same.sizes().slice(same.dim() - 1), {}, eps_);  // summed in float32
    return (groups_ == 1 ? y : y.flatten(-2)).to(x.scalar_type()) * weight;
  }
  const Tensor wide = same.scalar_type() == at::kDouble ? same : same.to(at::kFloat);
  const bool differentiate = at::GradMode::is_enabled() && wide.requires_grad();
  const Tensor y = differentiate ? NormalizeRms::apply(wide, eps_) : wide * inverse_rms(wide, eps_);
  return (groups_ == 1 ? y : y.flatten(-2)).to(x.scalar_type()) * weight;
}

Norm::OfSum RmsNorm::forward_of_sum(const Tensor& x, const Tensor& branch) const {
  if (groups_ == 1 && norm::gpu_takes(x, branch, weight)) {
    const auto [sum, y] = norm::norm_of_sum(x, branch, weight, eps_);
    return {sum, y};
  }
  const bool few = x.is_cuda() && branch.defined() && x.scalar_type() == branch.scalar_type() &&
                   token::gpu_norms(branch, weight, groups_) && token::gpu_norms(x, weight, groups_);
  if (!few) return Norm::forward_of_sum(x, branch);
  const auto [sum, y] = token::rms_norm(x, branch, weight, eps_, groups_);
  return {sum, y};
}

LayerNorm::LayerNorm(int64_t dim, double eps, bool with_bias) : Norm("LayerNorm"), eps_(eps) {
  register_parameter(weight, "weight", at::ones({dim}), Role::kGain);
  if (with_bias) register_parameter(bias, "bias", at::zeros({dim}), Role::kGain);
}

Tensor LayerNorm::forward(const Tensor& x) const {
  return for_products(at::layer_norm(x, weight.sizes(), weight, bias, eps_));
}

}  // namespace cortado
