#include "cortado/primitives/delta_scan/on_cpu.h"

#include "cortado/primitives/delta_scan/kernel.h"
#include "cortado/primitives/gated_scan/on_cpu.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::delta {

namespace {

// The gated scan of (k, u): its values are the kernel's business.
gated::FormInputs form_of(const ScanInputs& in) {
  gated::FormInputs form;
  form.y = in.q;
  form.x = in.k;
  form.v = in.v;
  form.g = in.g;
  form.initial = in.initial;
  return form;
}

struct Call {
  gated::KernelCall plain;
  ScanKernel scan;
};

Call call_of(const ScanInputs& in, const gated::FormInputs& form, const gated::FormOptions& options, double factor,
             const std::vector<int64_t>* bounds) {
  const int64_t state_heads =
      std::max({in.k.size(2), in.v.size(2), in.beta.size(2), in.g.defined() ? in.g.size(2) : 1});
  Call call{gated::kernel_call(form, options, factor, bounds, state_heads), {}};
  static_cast<gated::ScanKernel&>(call.scan) = call.plain.scan;
  call.scan.beta = kernels::timed(in.beta, options.heads);
  return call;
}

Call forward_call(const ScanInputs& in, const ScanOptions& options, double factor, const std::vector<int64_t>* bounds) {
  gated::FormOptions wanted{.heads = options.heads, .type = options.type};
  wanted.want_w = true;
  return call_of(in, form_of(in), wanted, factor, bounds);
}

}  // namespace

bool kernel_takes(const ScanInputs& in, const ScanOptions& options, std::initializer_list<Tensor> others) {
  return options.type == at::kFloat && kernels::usable({in.q, in.k, in.v, in.beta, in.g, in.initial}) &&
         kernels::usable(others);
}

ScanOutputs scan_by_kernel(const ScanInputs& in, const ScanOptions& options, double factor,
                           const std::vector<int64_t>* bounds) {
  const Call call = forward_call(in, options, factor, bounds);
  run_scan(call.scan, kernels::parallel());
  return {call.plain.out.w, call.plain.out.final_state};
}

ScanGradients scan_backward_by_kernel(const ScanInputs& in, const ScanOutputs& gradient, const ScanOptions& options,
                                      double factor, const std::vector<int64_t>* bounds) {
  gated::FormInputs form = form_of(in);
  form.w = gradient.o;
  form.final_grad = gradient.final_state;
  gated::FormOptions wanted{.heads = options.heads, .type = options.type};
  wanted.want_y = wanted.want_rest = true;
  wanted.want_gate = options.want_gate;
  Call call = call_of(in, form, wanted, factor, bounds);
  const auto type = in.beta.size(2) == options.heads ? in.beta.scalar_type() : at::kFloat;
  const Tensor beta = kernels::room({in.beta.size(0), in.beta.size(1), options.heads}, in.beta.options().dtype(type));
  call.scan.dbeta = kernels::timed(beta, options.heads);
  run_scan(call.scan, kernels::parallel());
  const auto& out = call.plain.out;
  return {out.y, out.x, out.v, beta, out.g, out.initial};
}

bool step_kernel_takes(const ScanInputs& in, const ScanOptions& options) {
  return in.k.size(1) == 1 && in.k.size(3) <= gated::kStepWidth && in.v.size(3) <= gated::kStepWidth &&
         kernel_takes(in, options);
}

ScanOutputs step_by_kernel(const ScanInputs& in, const ScanOptions& options, double factor) {
  const Call call = forward_call(in, options, factor, nullptr);
  run_step(call.scan, kernels::parallel(in.k.size(0) * options.heads * in.k.size(3) * in.v.size(3)));
  return {call.plain.out.w, call.plain.out.final_state};
}

}  // namespace cortado::delta
