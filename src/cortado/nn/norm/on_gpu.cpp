#include "cortado/nn/norm/on_gpu.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/nn/norm/norm_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::norm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

GpuRow row_of(const Tensor& x) { return {x.data_ptr(), x.scalar_type() != at::kFloat}; }
void* data_of(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

GpuNorm sized(const Tensor& x, const Tensor& weight) {
  GpuNorm in{};
  in.x = row_of(x);
  in.weight = weight.const_data_ptr<float>();
  in.width = int(x.size(-1));
  in.rows = int(x.numel() / x.size(-1));
  return in;
}

void launch(cuda::Machine& machine, const char* name, const GpuNorm& in, at::ScalarType type, int64_t blocks) {
  const std::string sizes =
      "PIECES=" + std::to_string(gpu_norm_pieces(in.width)) + " WARPS=" + std::to_string(gpu_norm_warps(in.width));
  machine.launch({"norm/kernel", cuda::variant_of(type, sizes), name, kGpuNormWarps * 32, kGpuNormBytes},
                 {unsigned(blocks)}, &in);
}

// Rows that a block has at a time, and the number of such steps for all rows.
int64_t slots_of(const GpuNorm& in) { return kGpuNormWarps / gpu_norm_warps(in.width); }
int64_t steps_of(const GpuNorm& in) { return (in.rows + slots_of(in) - 1) / slots_of(in); }

// The gradients of x through the residual stream and through the norm are returned as one sum.
class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalTensor& branch,
                               const Tensor& weight, double eps) {
    const auto type = at::autocast::get_autocast_dtype(at::kCUDA);
    const Normed made = norm_on_gpu(x, branch.value_or(Tensor()), weight, eps, type, cuda::machine_of(x));
    context->save_for_backward({made.sum, made.scale, weight});
    context->saved_data["branch"] = branch.has_value();
    context->set_materialize_grads(false);
    return {made.sum, made.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[rms_norm] can be differentiated once only");
    const auto saved = context->get_saved_variables();
    const Tensor& sum = saved[0];
    const bool branch = context->saved_data["branch"].toBool();
    const auto type = gradients[1].defined() ? gradients[1].scalar_type() : at::kBFloat16;
    const Tensor grad_y = gradients[1].defined() ? gradients[1] : at::zeros(sum.sizes(), sum.options().dtype(type));
    const Gradients found =
        norm_gradient_on_gpu(sum, saved[1], saved[2], grad_y, gradients[0], branch, cuda::machine_of(sum));
    return {found.x, found.branch, found.weight, Variable()};
  }
};

}  // namespace

bool gpu_takes(const Tensor& x, const Tensor& branch, const Tensor& weight) {
  if (!cuda::is_there(x) || !at::autocast::is_autocast_enabled(at::kCUDA)) return false;
  const auto type = at::autocast::get_autocast_dtype(at::kCUDA);
  const bool good_x = x.scalar_type() == at::kFloat || (x.scalar_type() == type && !branch.defined());
  return cuda::is_short(type) && good_x &&
         (!branch.defined() || (branch.scalar_type() == type && branch.sizes() == x.sizes())) &&
         weight.scalar_type() == at::kFloat && cuda::is_there(weight) && x.size(-1) == weight.size(0) &&
         x.size(-1) % 4 == 0 && x.size(-1) <= kGpuNormWidest && x.numel() / x.size(-1) < (int64_t{1} << 31);
}

Normed norm_on_gpu(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps, at::ScalarType type,
                   cuda::Machine& machine) {
  const c10::DeviceGuard guard(x.device());
  const Tensor from = cuda::dense(x), more = cuda::dense(branch), by = cuda::dense(weight);
  Normed made{branch.defined() ? at::empty(x.sizes(), x.options()) : x, at::empty(x.sizes(), x.options().dtype(type)),
              at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::kFloat))};
  GpuNorm in = sized(from, by);
  in.branch = data_of(more);
  if (branch.defined()) in.sum = made.sum.mutable_data_ptr<float>();
  in.y = made.y.mutable_data_ptr();
  in.scale = made.scale.mutable_data_ptr<float>();
  in.eps = float(eps);
  launch(machine, "norm_forward", in, type, steps_of(in));
  return made;
}

Gradients norm_gradient_on_gpu(const Tensor& sum, const Tensor& scale, const Tensor& weight, const Tensor& grad_y,
                               const Tensor& grad_sum, bool has_branch, cuda::Machine& machine) {
  const c10::DeviceGuard guard(sum.device());
  const Tensor from = cuda::dense(sum), by = cuda::dense(weight), dy = cuda::dense(grad_y),
               dsum = grad_sum.defined() ? cuda::dense(grad_sum.to(at::kFloat)) : grad_sum;
  GpuNorm in = sized(from, by);
  in.blocks = int(std::min<int64_t>(steps_of(in), 2 * machine.multiprocessors()));
  const auto room = [&](at::ScalarType type) { return at::empty(sum.sizes(), sum.options().dtype(type)); };
  const Tensor dx = room(sum.scalar_type()), dbranch = has_branch ? room(dy.scalar_type()) : Tensor();
  const Tensor sums = at::empty({int64_t{in.blocks} * slots_of(in), in.width}, by.options());
  in.scale = scale.mutable_data_ptr<float>();
  in.grad_y = dy.const_data_ptr();
  in.grad_sum = cuda::floats(dsum);
  in.grad_x = row_of(dx);
  in.grad_branch = data_of(dbranch);
  in.grad_weights = sums.mutable_data_ptr<float>();
  launch(machine, "norm_backward", in, dy.scalar_type(), in.blocks);
  return {dx, dbranch, sums.sum(0)};
}

OfSum norm_of_sum(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps) {
  const auto made = NormFunction::apply(x, branch.defined() ? OptionalTensor(branch) : std::nullopt, weight, eps);
  return {made[0], made[1]};
}

}  // namespace cortado::norm
