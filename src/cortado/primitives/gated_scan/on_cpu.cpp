#include "cortado/primitives/gated_scan/on_cpu.h"

#include "cortado/primitives/gated_scan/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado::gated {

namespace {

// Where a derivative [B,T,H,width] goes.
Tensor room(const Tensor& argument, const FormInputs& in, int64_t heads, int64_t width) {
  const Tensor& like = argument.defined() ? argument : in.v;
  const bool direct = !argument.defined() || argument.size(2) == heads;
  return at::empty({in.x.size(0), in.x.size(1), heads, width}, in.x.options().dtype(direct ? like.scalar_type() : at::kFloat));
}

Tensor plain(const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

}  // namespace

bool kernel_takes(const FormInputs& in, const FormOptions& options) {
  const bool both_reads = options.want_y && options.want_w;
  return options.type == at::kFloat && options.decay == DecayKind::kLogs && !both_reads &&
         kernels::usable({in.y, in.x, in.w, in.v, in.g, in.bonus, in.initial, in.final_grad});
}

FormOutputs differentiate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                                    const std::vector<int64_t>* bounds) {
  const int64_t heads = options.heads, keys = in.x.size(3), values = in.v.size(3);
  const int64_t rows = bounds ? static_cast<int64_t>(bounds->size()) - 1 : in.x.size(0);
  const int64_t state_heads = std::max({in.x.size(2), in.v.size(2), in.g.defined() ? in.g.size(2) : 1});
  const auto floats = in.x.options().dtype(at::kFloat);
  FormOutputs out;
  if (options.want_y) out.y = room(in.y, in, heads, keys);
  if (options.want_w) out.w = room(in.w, in, heads, values);
  if (options.want_rest) {
    out.x = room(in.x, in, heads, keys);
    out.v = room(in.v, in, heads, values);
    out.initial = at::empty({rows, heads, keys, values}, floats);
    if (in.bonus.defined()) out.bonus = at::empty({rows, heads, keys}, floats);
  } else {
    out.final_state = at::empty({rows, state_heads, keys, values}, floats);
  }
  if (options.want_gate) {
    std::vector<int64_t> sizes{in.x.size(0), in.x.size(1), heads};
    if (in.g.dim() == 4) sizes.push_back(keys);
    out.g = at::empty(sizes, floats);
  }
  Tensor bonus;
  if (in.bonus.defined()) bonus = in.bonus.to(at::kFloat).repeat_interleave(heads / in.bonus.size(0), 0);
  const Tensor initial = plain(in.initial), final_grad = plain(in.final_grad);
  using kernels::states;
  using kernels::timed;
  run_scan({.rows = rows,
            .tokens = in.x.size(1),
            .heads = heads,
            .keys = keys,
            .values = values,
            .bounds = bounds ? bounds->data() : nullptr,
            .reverse = options.reverse,
            .y = timed(in.y, heads),
            .x = timed(in.x, heads),
            .w = timed(in.w, heads),
            .v = timed(in.v, heads),
            .g = timed(in.g, heads),
            .gate_per_channel = in.g.defined() && in.g.dim() == 4,
            // What is not differentiated by carries the factor: a backward's dy or dw belongs to the other one.
            .y_factor = options.want_y ? 1.0f : static_cast<float>(factor),
            .w_factor = options.want_y ? static_cast<float>(factor) : 1.0f,
            .bonus = bonus.defined() ? bonus.data_ptr<float>() : nullptr,
            .initial = states(initial, heads),
            .final_grad = states(final_grad, heads),
            .dy = timed(out.y, heads),
            .dx = timed(out.x, heads),
            .dw = timed(out.w, heads),
            .dv = timed(out.v, heads),
            .dg = timed(out.g, heads),
            .dbonus = out.bonus.defined() ? out.bonus.data_ptr<float>() : nullptr,
            .final_state = states(out.final_state, heads),
            .initial_grad = states(out.initial, heads)},
           kernels::parallel());
  return out;
}

}  // namespace cortado::gated
