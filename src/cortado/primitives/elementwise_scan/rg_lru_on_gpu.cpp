#include "cortado/primitives/elementwise_scan/rg_lru_on_gpu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/elementwise_scan/rg_lru_gpu.h"

namespace cortado::elementwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

GpuNumbers numbers_of(const Tensor& x) { return {x.data_ptr(), x.scalar_type() == at::kBFloat16}; }

// A call's inputs, without gaps.
struct Call {
  Tensor r, i, x, slope, first;
  GpuRgLru in{};

  Call(const Tensor& r_given, const Tensor& i_given, const Tensor& x_given, const Tensor& slope_given,
       const Tensor& first_given)
      : r(r_given.contiguous()),
        i(i_given.contiguous()),
        x(x_given.contiguous()),
        slope(slope_given.contiguous()),
        first(first_given.expand({x.size(0), x.size(1)}).contiguous()) {
    in.r = numbers_of(r);
    in.i = numbers_of(i);
    in.x = numbers_of(x);
    in.slope = slope.const_data_ptr<float>();
    in.first = static_cast<const unsigned char*>(first.const_data_ptr());
    in.rows = int(x.size(0) * x.size(1));
    in.width = int(x.size(2));
  }

  int64_t row_blocks() const { return (in.rows + kRgLruRows - 1) / kRgLruRows; }

  void launch(cuda::Machine& machine, const char* name) const {
    const unsigned columns = unsigned((in.width / 2 + kRgLruThreads - 1) / kRgLruThreads);
    machine.launch({"elementwise_scan/kernel_rg_lru", "", name, kRgLruThreads}, {columns, unsigned(row_blocks())}, &in);
  }
};

class RgLruFunction : public torch::autograd::Function<RgLruFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& r, const Tensor& i, const Tensor& x,
                               const Tensor& slope, const Tensor& first, double largest_slope) {
    context->save_for_backward({r, i, x, slope, first});
    context->saved_data["largest_slope"] = largest_slope;
    const RgLruWrites made = rg_lru_on_gpu(r, i, x, slope, first, cuda::machine_of(x));
    return {made.log_a, made.b};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto given = [&](size_t n) {
      return gradients[n].defined() ? gradients[n] : at::zeros(saved[2].sizes(), saved[3].options());
    };
    const auto found =
        rg_lru_gradient_on_gpu(saved[0], saved[1], saved[2], saved[3], saved[4], given(0), given(1),
                               context->saved_data["largest_slope"].toDouble(), cuda::machine_of(saved[2]));
    return {found.r, found.i, found.x, found.slope, Variable(), Variable()};
  }
};

}  // namespace

bool gpu_gates(std::initializer_list<Tensor> timed, const Tensor& slope) {
  for (const Tensor& x : timed) {
    const auto type = x.scalar_type();
    if (!cuda::has_numbers(x) || !x.is_cuda() || (type != at::kFloat && type != at::kBFloat16) || x.size(2) % 2 ||
        x.numel() == 0) {
      return false;
    }
  }
  return slope.is_cuda() && slope.scalar_type() == at::kFloat && cuda::usable(slope.device().index());
}

RgLruWrites rg_lru_on_gpu(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope, const Tensor& first,
                          cuda::Machine& machine) {
  Call call(r, i, x, slope, first);
  const RgLruWrites made{at::empty(x.sizes(), slope.options()), at::empty(x.sizes(), slope.options())};
  call.in.log_a = made.log_a.mutable_data_ptr<float>();
  call.in.b = made.b.mutable_data_ptr<float>();
  call.launch(machine, "rg_lru_gates");
  return made;
}

RgLruDerivatives rg_lru_gradient_on_gpu(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope,
                                        const Tensor& first, const Tensor& dlog_a, const Tensor& db,
                                        double largest_slope, cuda::Machine& machine) {
  Call call(r, i, x, slope, first);
  const Tensor decays = dlog_a.to(at::kFloat).contiguous(), adds = db.to(at::kFloat).contiguous();
  const RgLruDerivatives out{at::empty_like(call.r), at::empty_like(call.i), at::empty_like(call.x),
                             at::empty({call.row_blocks(), x.size(2)}, slope.options())};
  call.in.dlog_a = decays.const_data_ptr<float>();
  call.in.db = adds.const_data_ptr<float>();
  call.in.dr = numbers_of(out.r);
  call.in.di = numbers_of(out.i);
  call.in.dx = numbers_of(out.x);
  call.in.dslope = out.slope.mutable_data_ptr<float>();
  call.in.largest_slope = float(largest_slope);
  call.launch(machine, "rg_lru_gates_gradient");
  return {out.r, out.i, out.x, out.slope.sum(0)};
}

RgLruWrites rg_lru_gates(const Tensor& r, const Tensor& i, const Tensor& x, const Tensor& slope, const Tensor& first,
                         double largest_slope) {
  const auto made = RgLruFunction::apply(r, i, x, slope, first, largest_slope);
  return {made[0], made[1]};
}

bool gpu_takes_step(const RgLruStepInputs& in) {
  if (!in.x.is_cuda() || !cuda::has_numbers(in.x) || at::GradMode::is_enabled() || in.x.numel() == 0) return false;
  for (const Tensor* x : {&in.x, &in.r_weight, &in.r_bias, &in.i_weight, &in.i_bias, &in.lambda}) {
    if (!x->is_cuda() || x->scalar_type() != at::kBFloat16) return false;
  }
  return in.x.size(1) == 1 && in.r_weight.size(1) % 2 == 0 && in.start.scalar_type() == at::kFloat &&
         in.x.size(0) < (1 << 16) && in.r_weight.size(0) < (1 << 16) && cuda::usable(in.x.device().index());
}

RgLruStepMade rg_lru_step_on_gpu(const RgLruStepInputs& in, cuda::Machine& machine) {
  const c10::DeviceGuard guard(in.x.device());
  const Tensor x = in.x.contiguous(), r = in.r_weight.contiguous(), i = in.i_weight.contiguous(),
               position = in.position.contiguous(), start = in.start.contiguous(), r_bias = in.r_bias.contiguous(),
               i_bias = in.i_bias.contiguous(), lambda = in.lambda.contiguous();
  const RgLruStepMade made{at::empty(start.sizes(), start.options()), at::empty(x.sizes(), x.options())};
  const GpuRgLruStep call{x.const_data_ptr(),
                          r.const_data_ptr(),
                          r_bias.const_data_ptr(),
                          i.const_data_ptr(),
                          i_bias.const_data_ptr(),
                          lambda.const_data_ptr(),
                          cuda::long_numbers(position),
                          start.const_data_ptr<float>(),
                          made.h.mutable_data_ptr<float>(),
                          made.y.mutable_data_ptr(),
                          int(r.size(0)),
                          int(r.size(1)),
                          float(in.sharpness)};
  const unsigned channels = unsigned((call.size + kRgLruStepChannels - 1) / kRgLruStepChannels);
  machine.launch({"elementwise_scan/kernel_rg_lru", "", "rg_lru_step", kRgLruStepThreads, kRgLruStepBytes},
                 {channels, unsigned(call.heads), unsigned(x.size(0))}, &call);
  return made;
}

RgLruStepMade rg_lru_step(const RgLruStepInputs& in) { return rg_lru_step_on_gpu(in, cuda::machine_of(in.x)); }

}  // namespace cortado::elementwise
