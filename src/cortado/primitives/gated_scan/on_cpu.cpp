#include "cortado/primitives/common.h"
#include "cortado/primitives/delta_scan/kernel.h"
#include "cortado/primitives/gated_scan/form.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::gated {

namespace {

// Allocates a derivative [B,T,H,width].
Tensor room(const Tensor& argument, const FormInputs& in, int64_t heads, int64_t width) {
  const Tensor& like = argument.defined() ? argument : in.v;
  const bool direct = !argument.defined() || argument.size(2) == heads;
  return kernels::room({in.x.size(0), in.x.size(1), heads, width},
                       in.x.options().dtype(direct ? like.scalar_type() : at::kFloat));
}

int64_t state_heads(const FormInputs& in) {
  int64_t heads = 1;
  for (const Tensor* x : {&in.x, &in.v, &in.g, &in.beta}) heads = x->defined() ? std::max(heads, x->size(2)) : heads;
  return heads;
}

// A kernel call with memory for its outputs and the tensors that own the data it points to (besides those of `in`).
struct KernelCall {
  FormOutputs out = {};
  Tensor bonus, initial, final_grad;
  delta::ScanKernel scan = {};
};

FormOutputs room_for(const FormInputs& in, const FormOptions& options, int64_t rows) {
  const int64_t heads = options.heads, keys = in.x.size(3), values = in.v.size(3);
  const auto floats = in.x.options().dtype(at::kFloat);
  FormOutputs out;
  if (options.want_y) out.y = room(in.y, in, heads, keys);
  if (options.want_w) out.w = room(in.w, in, heads, values);
  if (options.want_rest) {
    out.x = room(in.x, in, heads, keys);
    out.v = room(in.v, in, heads, values);
    if (in.beta.defined()) out.beta = room(in.beta, in, heads, 1).squeeze(-1);
    out.initial = kernels::room({rows, heads, keys, values}, floats);
    if (in.bonus.defined()) out.bonus = kernels::room({rows, heads, keys}, floats);
  } else {
    out.final_state = kernels::room({rows, state_heads(in), keys, values}, floats);
  }
  if (options.want_gate) {
    std::vector<int64_t> sizes{in.x.size(0), in.x.size(1), heads};
    if (in.g.dim() == 4) sizes.push_back(keys);
    out.g = kernels::room(sizes, floats);
  }
  return out;
}

KernelCall kernel_call(const FormInputs& in, const FormOptions& options, double factor,
                       const std::vector<int64_t>* bounds) {
  const int64_t heads = options.heads, rows = bounds ? static_cast<int64_t>(bounds->size()) - 1 : in.x.size(0);
  KernelCall call{.out = room_for(in, options, rows),
                  .bonus = in.bonus.defined() ? kernels::plain(expand_heads(in.bonus, heads, 0)) : in.bonus,
                  .initial = kernels::plain(in.initial),
                  .final_grad = kernels::plain(in.final_grad)};
  delta::ScanKernel& scan = call.scan;
  scan.rows = rows;
  scan.tokens = in.x.size(1);
  scan.heads = heads;
  scan.keys = in.x.size(3);
  scan.values = in.v.size(3);
  scan.bounds = bounds ? bounds->data() : nullptr;
  scan.reverse = options.reverse;
  scan.gate_per_channel = in.g.defined() && in.g.dim() == 4;
  scan.gates_are_factors = options.decay == DecayKind::kFactors;
  // The factor is applied to the argument that is not differentiated by: a backward's dy or dw belongs to the other
  // one.
  (options.want_y ? scan.w_factor : scan.y_factor) = static_cast<float>(factor);
  const FormOutputs& out = call.out;
  const std::tuple<kernels::Timed*, const Tensor*> timed[] = {
      {&scan.y, &in.y},   {&scan.x, &in.x},       {&scan.w, &in.w},   {&scan.v, &in.v},
      {&scan.g, &in.g},   {&scan.beta, &in.beta}, {&scan.dy, &out.y}, {&scan.dx, &out.x},
      {&scan.dw, &out.w}, {&scan.dv, &out.v},     {&scan.dg, &out.g}, {&scan.dbeta, &out.beta}};
  for (const auto& [operand, x] : timed) *operand = kernels::timed(*x, heads);
  scan.bonus = kernels::numbers(call.bonus);
  scan.dbonus = kernels::numbers(out.bonus);
  scan.initial = kernels::states(call.initial, heads);
  scan.final_grad = kernels::states(call.final_grad, heads);
  scan.final_state = kernels::states(out.final_state, heads);
  scan.initial_grad = kernels::states(out.initial, heads);
  return call;
}

}  // namespace

bool kernel_takes(const FormInputs& in, const FormOptions& options, bool step) {
  const bool both_reads = options.want_y && options.want_w;
  return options.type == at::kFloat && !both_reads &&
         (!step || (in.x.size(3) <= kStepWidth && in.v.size(3) <= kStepWidth)) &&
         kernels::usable({in.y, in.x, in.w, in.v, in.g, in.beta, in.bonus, in.initial, in.final_grad});
}

FormOutputs evaluate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                               const std::vector<int64_t>* bounds, bool step) {
  const KernelCall call = kernel_call(in, options, factor, bounds);
  const bool delta = in.beta.defined();
  const int64_t products = in.x.size(0) * in.x.size(1) * options.heads * in.x.size(3) * in.v.size(3);
  const kernels::Parallel parallel = delta && !step ? kernels::parallel() : kernels::parallel(products);
  if (delta) {
    (step ? delta::run_step : delta::run_scan)(call.scan, parallel);
  } else {
    (step ? gated::run_step : gated::run_scan)(call.scan, parallel);
  }
  return call.out;
}

}  // namespace cortado::gated
