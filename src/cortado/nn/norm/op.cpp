#include "cortado/nn/norm/op.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/nn/autocast.h"
#include "cortado/nn/fused/ops.h"
#include "cortado/nn/norm/on_gpu.h"
#include "cortado/nn/token/on_gpu.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

Tensor inverse_rms(const Tensor& x, double eps) { return at::rsqrt(at::mean(at::square(x), -1, true).add_(eps)); }

// x -> x/rms(x) with its own backward, because autograd's would save and read three more tensors of x's size. With y =
// x·r, r = (mean x² + eps)^-1/2: dx = r·(dy - y·mean(dy·y)).
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

bool are(at::ScalarType type, const Tensor& x, const Tensor& weight) {
  return x.scalar_type() == type && weight.scalar_type() == type;
}

// y [..., D] -> [..., groups, D/groups]; joined() is the inverse.
Tensor in_groups(const Tensor& x, int64_t groups) {
  return groups == 1 ? x : x.unflatten(-1, {groups, x.size(-1) / groups});
}
Tensor joined(const Tensor& y, int64_t groups) { return groups == 1 ? y : y.flatten(-2); }

// For 16-bit types: torch's kernel, which sums in float32.
Tensor norm_by_torch(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  const Tensor rows = in_groups(x, groups);
  return joined(at::rms_norm(rows, rows.sizes().slice(rows.dim() - 1), {}, eps), groups).to(x.scalar_type()) * weight;
}

Tensor norm_by_definition(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  const Tensor rows = in_groups(x, groups), wide = rows.scalar_type() == at::kDouble ? rows : rows.to(at::kFloat);
  const bool differentiate = at::GradMode::is_enabled() && wide.requires_grad();
  const Tensor y = differentiate ? NormalizeRms::apply(wide, eps) : wide * inverse_rms(wide, eps);
  return joined(y, groups).to(x.scalar_type()) * weight;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  return choose("rms_norm", x,
                on_cpu(
                    "kernel", [&] { return x.scalar_type() == at::kFloat && fused::takes({x, weight}); },
                    [&] { return fused::rms_norm(x, weight, eps, groups); }),
                on_gpu(
                    "kernel under autocast", [&] { return groups == 1 && norm::gpu_takes(x, {}, weight); },
                    [&] { return norm::norm_of_sum(x, {}, weight, eps).y; }),
                on_gpu(
                    "torch, float32", [&] { return groups == 1 && are(at::kFloat, x, weight); },
                    [&] { return for_products(at::rms_norm(x, weight.sizes(), weight, eps)); }),
                on_gpu(
                    "kernel of few rows", [&] { return token::gpu_norms(x, weight, groups); },
                    [&] { return token::rms_norm(x, {}, weight, eps, groups).y; }),
                on_gpu(
                    "torch, 16 bits", [&] { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; },
                    [&] { return norm_by_torch(x, weight, eps, groups); }),
                otherwise("ATen", [&] { return norm_by_definition(x, weight, eps, groups); }));
}

NormedSum rms_norm_of_sum(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, int64_t groups) {
  return choose("rms_norm_of_sum", x,
                on_gpu(
                    "kernel under autocast", [&] { return groups == 1 && norm::gpu_takes(x, branch, weight); },
                    [&]() -> NormedSum {
                      const auto [sum, y] = norm::norm_of_sum(x, branch, weight, eps);
                      return {sum, y};
                    }),
                on_gpu(
                    "kernel of few rows",
                    [&] {
                      return branch.defined() && x.scalar_type() == branch.scalar_type() &&
                             token::gpu_norms(branch, weight, groups) && token::gpu_norms(x, weight, groups);
                    },
                    [&]() -> NormedSum {
                      const auto [sum, y] = token::rms_norm(x, branch, weight, eps, groups);
                      return {sum, y};
                    }),
                otherwise("sum, rms_norm", [&]() -> NormedSum {
                  const Tensor sum = branch.defined() ? x + branch : x;
                  return {sum, rms_norm(sum, weight, eps, groups)};
                }));
}

}  // namespace cortado
