#include "cortado/nn/rg_lru/on_gpu.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/base/error.h"
#include "cortado/nn/rg_lru/rg_lru_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::elementwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// [blocks,N,size], or [B,T,D] as one block.
GpuNumbers numbers_of(const Tensor& x) {
  return {x.data_ptr(), x.scalar_type() == at::kBFloat16, int(x.size(2)), x.stride(0)};
}
Tensor floats(const Tensor& x) { return x.to(at::kFloat).contiguous(); }

// A call's inputs, made contiguous.
struct Call {
  RgLruInputs given;
  GpuRgLru in{};

  explicit Call(const RgLruInputs& inputs)
      : given{inputs.r.contiguous(),
              inputs.i.contiguous(),
              inputs.x.contiguous(),
              floats(inputs.slope),
              floats(inputs.r_bias),
              floats(inputs.i_bias),
              inputs.first.expand({inputs.x.size(0), inputs.x.size(1)}).contiguous()} {
    in.r = numbers_of(given.r);
    in.i = numbers_of(given.i);
    in.x = numbers_of(given.x);
    in.slope = given.slope.const_data_ptr<float>();
    in.r_bias = given.r_bias.const_data_ptr<float>();
    in.i_bias = given.i_bias.const_data_ptr<float>();
    in.first = static_cast<const unsigned char*>(given.first.const_data_ptr());
    in.rows = int(given.x.size(0) * given.x.size(1));
    in.width = int(given.x.size(2));
  }

  int64_t row_blocks() const { return (in.rows + kRgLruRows - 1) / kRgLruRows; }

  void launch(cuda::Machine& machine, const char* name) const {
    const unsigned columns = unsigned((in.width / 2 + kRgLruThreads - 1) / kRgLruThreads);
    machine.launch({"rg_lru/kernel", "", name, kRgLruThreads}, {columns, unsigned(row_blocks())}, &in);
  }
};

class RgLruFunction : public torch::autograd::Function<RgLruFunction> {
 public:
  // `all`: the tensors of RgLruInputs in their order.
  static variable_list forward(AutogradContext* context, at::TensorList all, double largest_slope) {
    context->save_for_backward(all.vec());
    context->saved_data["largest_slope"] = largest_slope;
    const RgLruWrites made =
        rg_lru_on_gpu({all[0], all[1], all[2], all[3], all[4], all[5], all[6]}, cuda::machine_of(all[2]));
    return {made.log_a, made.b};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    fail_input_if(at::GradMode::is_enabled(), "[rg_lru_gates] can be differentiated once only");
    const auto saved = context->get_saved_variables();
    const RgLruInputs in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6]};
    const auto given = [&](size_t n) {
      return gradients[n].defined() ? gradients[n] : at::zeros(in.x.sizes(), in.x.options().dtype(at::kFloat));
    };
    const auto found = rg_lru_gradient_on_gpu(in, given(0), given(1), context->saved_data["largest_slope"].toDouble(),
                                              cuda::machine_of(in.x));
    const auto of = [](const Tensor& gradient, const Tensor& like) { return gradient.to(like.scalar_type()); };
    return {found.r,
            found.i,
            found.x,
            of(found.slope, in.slope),
            of(found.r_bias, in.r_bias),
            of(found.i_bias, in.i_bias),
            Variable(),
            Variable()};
  }
};

}  // namespace

bool gpu_gates(const Tensor& x, int64_t heads) {
  const auto type = x.scalar_type();
  return cuda::is_there(x) && (type == at::kFloat || type == at::kBFloat16) && x.size(2) / heads % 2 == 0 &&
         x.size(0) * x.size(1) <= kRgLruRows * cuda::kMostRows;
}

RgLruWrites rg_lru_on_gpu(const RgLruInputs& inputs, cuda::Machine& machine) {
  const c10::DeviceGuard guard(inputs.x.device());
  Call call(inputs);
  const auto options = call.given.slope.options();
  const RgLruWrites made{at::empty(inputs.x.sizes(), options), at::empty(inputs.x.sizes(), options)};
  call.in.log_a = made.log_a.mutable_data_ptr<float>();
  call.in.b = made.b.mutable_data_ptr<float>();
  call.launch(machine, "rg_lru_gates");
  return made;
}

RgLruDerivatives rg_lru_gradient_on_gpu(const RgLruInputs& inputs, const Tensor& dlog_a, const Tensor& db,
                                        double largest_slope, cuda::Machine& machine) {
  const c10::DeviceGuard guard(inputs.x.device());
  Call call(inputs);
  const Tensor decays = floats(dlog_a), adds = floats(db);
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const Tensor sums = at::empty({3, call.row_blocks(), inputs.x.size(2)}, call.given.slope.options());
  const RgLruDerivatives out{like(call.given.r), like(call.given.i), like(call.given.x), {}, {}, {}};
  const auto part = [&](int64_t n) { return sums.select(0, n).mutable_data_ptr<float>(); };
  call.in.dlog_a = decays.const_data_ptr<float>();
  call.in.db = adds.const_data_ptr<float>();
  call.in.dr = numbers_of(out.r);
  call.in.di = numbers_of(out.i);
  call.in.dx = numbers_of(out.x);
  call.in.dslope = part(0);
  call.in.dr_bias = part(1);
  call.in.di_bias = part(2);
  call.in.largest_slope = float(largest_slope);
  call.launch(machine, "rg_lru_gates_gradient");
  const Tensor all = sums.sum(1);
  return {out.r, out.i, out.x, all.select(0, 0), all.select(0, 1), all.select(0, 2)};
}

RgLruWrites rg_lru_gates(const RgLruInputs& in, double largest_slope) {
  const Tensors all = {in.r, in.i, in.x, in.slope, in.r_bias, in.i_bias, in.first};
  const auto made = RgLruFunction::apply(at::TensorList(all), largest_slope);
  return {made[0], made[1]};
}

bool gpu_takes_step(const RgLruStepInputs& in) {
  return !at::GradMode::is_enabled() &&
         cuda::are_there({in.x, in.r_weight, in.r_bias, in.i_weight, in.i_bias, in.lambda}, {at::kBFloat16}) &&
         in.x.size(1) == 1 && in.r_weight.size(1) % 2 == 0 && in.start.scalar_type() == at::kFloat &&
         in.x.size(0) <= cuda::kMostRows && in.r_weight.size(0) <= cuda::kMostRows;
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
  machine.launch({"rg_lru/kernel", "", "rg_lru_step", kRgLruStepThreads, kRgLruStepBytes},
                 {channels, unsigned(call.heads), unsigned(x.size(0))}, &call);
  return made;
}

RgLruStepMade rg_lru_step(const RgLruStepInputs& in) { return rg_lru_step_on_gpu(in, cuda::machine_of(in.x)); }

}  // namespace cortado::elementwise
