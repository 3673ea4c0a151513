#include "cortado/primitives/gated_scan/on_cpu.h"

#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::gated {

namespace {

// Where a derivative [B,T,H,width] goes.
Tensor room(const Tensor& argument, const FormInputs& in, int64_t heads, int64_t width) {
  const Tensor& like = argument.defined() ? argument : in.v;
  const bool direct = !argument.defined() || argument.size(2) == heads;
  return kernels::room({in.x.size(0), in.x.size(1), heads, width},
                       in.x.options().dtype(direct ? like.scalar_type() : at::kFloat));
}

Tensor plain(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

int64_t state_heads(const FormInputs& in) {
  return std::max({in.x.size(2), in.v.size(2), in.g.defined() ? in.g.size(2) : 1});
}

// [heads, K]
Tensor wide_bonus(const FormInputs& in, int64_t heads) {
  return in.bonus.defined() ? plain(expand_heads(in.bonus, heads, 0)) : Tensor();
}

// The inputs of a call.
ScanKernel inputs_of(const FormInputs& in, const FormOptions& options, double factor, const KernelCall& kept) {
  const int64_t heads = options.heads;
  using kernels::timed;
  ScanKernel call{
      .rows = in.x.size(0), .tokens = in.x.size(1), .heads = heads, .keys = in.x.size(3), .values = in.v.size(3)};
  call.reverse = options.reverse;
  call.y = timed(in.y, heads);
  call.x = timed(in.x, heads);
  call.w = timed(in.w, heads);
  call.v = timed(in.v, heads);
  call.g = timed(in.g, heads);
  call.gate_per_channel = in.g.defined() && in.g.dim() == 4;
  call.gates_are_factors = options.decay == DecayKind::kFactors;
  // What is not differentiated by carries the factor: a backward's dy or dw belongs to the other one.
  (options.want_y ? call.w_factor : call.y_factor) = static_cast<float>(factor);
  call.bonus = kept.bonus.defined() ? kept.bonus.data_ptr<float>() : nullptr;
  call.initial = kernels::states(kept.initial, heads);
  return call;
}

}  // namespace

bool kernel_takes(const FormInputs& in, const FormOptions& options) {
  const bool both_reads = options.want_y && options.want_w;
  return options.type == at::kFloat && !both_reads &&
         kernels::usable({in.y, in.x, in.w, in.v, in.g, in.bonus, in.initial, in.final_grad});
}

KernelCall kernel_call(const FormInputs& in, const FormOptions& options, double factor,
                       const std::vector<int64_t>* bounds, int64_t state_heads) {
  const int64_t heads = options.heads, keys = in.x.size(3), values = in.v.size(3);
  const int64_t rows = bounds ? static_cast<int64_t>(bounds->size()) - 1 : in.x.size(0);
  const auto floats = in.x.options().dtype(at::kFloat);
  KernelCall call{.out = {},
                  .bonus = wide_bonus(in, heads),
                  .initial = plain(in.initial),
                  .final_grad = plain(in.final_grad),
                  .scan = {}};
  FormOutputs& out = call.out;
  if (options.want_y) out.y = room(in.y, in, heads, keys);
  if (options.want_w) out.w = room(in.w, in, heads, values);
  if (options.want_rest) {
    out.x = room(in.x, in, heads, keys);
    out.v = room(in.v, in, heads, values);
    out.initial = kernels::room({rows, heads, keys, values}, floats);
    if (in.bonus.defined()) out.bonus = kernels::room({rows, heads, keys}, floats);
  } else {
    out.final_state = kernels::room({rows, state_heads, keys, values}, floats);
  }
  if (options.want_gate) {
    std::vector<int64_t> sizes{in.x.size(0), in.x.size(1), heads};
    if (in.g.dim() == 4) sizes.push_back(keys);
    out.g = kernels::room(sizes, floats);
  }
  ScanKernel& scan = call.scan = inputs_of(in, options, factor, call);
  scan.rows = rows;
  scan.bounds = bounds ? bounds->data() : nullptr;
  scan.final_grad = kernels::states(call.final_grad, heads);
  scan.dy = kernels::timed(out.y, heads);
  scan.dx = kernels::timed(out.x, heads);
  scan.dw = kernels::timed(out.w, heads);
  scan.dv = kernels::timed(out.v, heads);
  scan.dg = kernels::timed(out.g, heads);
  scan.dbonus = out.bonus.defined() ? out.bonus.data_ptr<float>() : nullptr;
  scan.final_state = kernels::states(out.final_state, heads);
  scan.initial_grad = kernels::states(out.initial, heads);
  return call;
}

namespace {

int64_t products(const FormInputs& in, const FormOptions& options) {
  return in.x.size(0) * in.x.size(1) * options.heads * in.x.size(3) * in.v.size(3);
}

}  // namespace

FormOutputs differentiate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                                    const std::vector<int64_t>* bounds) {
  const KernelCall call = kernel_call(in, options, factor, bounds, state_heads(in));
  run_scan(call.scan, kernels::parallel(products(in, options)));
  return call.out;
}

bool step_kernel_takes(const FormInputs& in, const FormOptions& options) {
  return in.x.size(1) == 1 && in.x.size(3) <= kStepWidth && in.v.size(3) <= kStepWidth && kernel_takes(in, options);
}

FormOutputs step_by_kernel(const FormInputs& in, const FormOptions& options, double factor) {
  const KernelCall call = kernel_call(in, options, factor, nullptr, state_heads(in));
  run_step(call.scan, kernels::parallel(products(in, options)));
  return call.out;
}

}  // namespace cortado::gated
