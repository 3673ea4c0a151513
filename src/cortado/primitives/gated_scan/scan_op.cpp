#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/scan.h"
#include "cortado/primitives/gated_scan/step_on_gpu.h"
#include "cortado/primitives/gated_scan/tokens_on_gpu.h"

namespace cortado::gated {

namespace {

// Several query heads on one state head (GQA): the state is computed for each of them. The copies are equal and the
// first is the result [rows,Hs,K,V]; its gradient is spread back to [rows,H,K,V], 0 for the others.
Tensor first_of_copies(const Tensor& state, int64_t state_heads) {
  if (state.size(1) == state_heads) return state;
  return state.unflatten(1, {state_heads, state.size(1) / state_heads}).select(2, 0).contiguous();
}

Tensor spread_to_copies(const Tensor& gradient, int64_t heads) {
  const int64_t state_heads = gradient.size(1);
  if (state_heads == heads) return gradient;
  const Tensor wide = at::zeros({gradient.size(0), heads, gradient.size(2), gradient.size(3)}, gradient.options());
  wide.unflatten(1, {state_heads, heads / state_heads}).select(2, 0).copy_(gradient);
  return wide;
}

TensorTuple<2> step_by_aten(const ScanCall& call) {
  const auto& [y, x, w, values, g, beta, bonus_of_keys, initial, final_grad] = call.form;
  const auto type = call.options.type;
  const int64_t batch = x.size(0), heads = call.options.heads, state_heads = call.state_heads,
                group = heads / state_heads;
  const auto token = [type](const Tensor& timed, int64_t wanted) {  // [B,1,h,*] -> [B,H,*]
    return expand_heads(timed.select(1, 0).to(type), wanted, 1);
  };
  const Tensor k = token(x, state_heads).unsqueeze(-1);  // [B,Hs,K,1]
  Tensor v = token(values, state_heads).unsqueeze(-2);   // [B,Hs,1,V]
  Tensor before, decay, state;
  if (call.initial_state) {
    before = call.initial_state->to(type);
    if (g.defined()) decay = token(g, state_heads).unsqueeze(-1);
    if (g.defined() && g.dim() == 3) decay = decay.unsqueeze(-1);
  }
  if (call.options.decay == DecayKind::kFactors) {
    state = before.defined() ? at::addcmul(k * v, before, decay) : k * v;
  } else {
    Tensor kept = decay.defined() ? before * decay.exp() : before;
    if (beta.defined()) {
      const Tensor strength = token(beta, state_heads).unsqueeze(-1).unsqueeze(-1);
      v = v * strength;
      if (kept.defined()) v.sub_(at::matmul(k.transpose(-1, -2) * strength, kept));
    }
    state = !kept.defined() ? k * v : decay.defined() ? kept.addcmul_(k, v) : at::addcmul(kept, k, v);
  }
  const Tensor q = token(call.query, heads);
  if (bonus_of_keys.defined()) {
    const Tensor rows = q.reshape({batch, state_heads, group, q.size(2)});
    const Tensor bonus = expand_heads(bonus_of_keys.to(type), heads, 0).view({1, state_heads, group, q.size(2)});
    const Tensor self = (rows * bonus * k.transpose(-1, -2)).sum(-1, true) * v;
    const Tensor o = at::matmul(rows, before.defined() ? before : at::zeros_like(state)).add_(self).mul_(call.factor);
    return {o.view({batch, 1, heads, values.size(3)}).to(values.scalar_type()), state};
  }
  const Tensor rows = q.reshape({batch * state_heads, group, q.size(2)});
  const Tensor read = state.reshape({batch * state_heads, state.size(2), state.size(3)});
  const Tensor o = at::bmm(rows, call.read_keys ? read : read.transpose(1, 2)).mul_(call.factor);
  return {o.view({batch, 1, heads, o.size(2)}).to(values.scalar_type()), state};
}

// The form by ATen, whose results come in the type of the sums.
FormOutputs compute_by_aten(FormInputs in, const FormOptions& options, double factor, const Bounds& bounds) {
  const bool scale_read = in.beta.defined() && !options.want_rest;
  Tensor& given = options.want_y ? in.w : in.y;
  if (!given.defined()) {
    given = at::zeros({1}, in.x.options().dtype(options.type))
                .expand({in.x.size(0), in.x.size(1), options.heads, (options.want_y ? in.v : in.x).size(3)});
  } else if (!scale_read) {
    given = given.to(options.type) * factor;
  }
  FormOutputs out =
      bounds.get() ? differentiate_sequences(in, options, *bounds.get()) : differentiate_form(in, options);
  if (scale_read) out.w.mul_(factor);
  return out;
}

// What CORTADO_TRACE calls a scan.
const char* name_of(const ScanCall& call, bool backward) {
  if (call.form.beta.defined()) return backward ? "delta_scan_backward" : "delta_scan";
  if (call.options.decay == DecayKind::kFactors) return backward ? "slot_scan_backward" : "slot_scan";
  return backward ? "gated_scan_backward" : "gated_scan";
}

// The form with its states. All but the CPU's kernel want a state for each of the output's heads.
FormOutputs compute(const ScanCall& call) {
  const FormInputs& in = call.form;
  const FormOptions& options = call.options;
  const double factor = call.factor;
  const Bounds bounds(call.name, call.cu_seqlens, in.x.size(1));
  const auto with_all_heads = [&] {
    FormInputs all = in;
    if (in.initial.defined()) all.initial = expand_heads(in.initial, options.heads, 1);
    if (in.final_grad.defined()) all.final_grad = spread_to_copies(in.final_grad, options.heads);
    return all;
  };
  return choose(
      name_of(call, options.want_rest), in.x,
      on_cpu(
          "kernel", [&] { return kernel_takes(in, options, false); },
          [&] { return differentiate_by_kernel(in, options, factor, bounds.get(), false); }),
      on_gpu(
          "kernel of chunks", [&] { return gpu_takes(in, options, factor); },
          [&] {
            return differentiate_on_gpu(with_all_heads(), options, factor, bounds.get(), cuda::machine_of(in.x));
          }),
      on_gpu(
          "kernel of tokens", [&] { return tokens_take(in, options, factor); },
          [&] {
            return differentiate_by_tokens(with_all_heads(), options, factor, bounds.get(), cuda::machine_of(in.x));
          }),
      otherwise("ATen", [&] { return compute_by_aten(with_all_heads(), options, factor, bounds); }));
}

// One token, without chunks.
TensorTuple<2> compute_step(const ScanCall& call) {
  return choose("scan of one token", call.form.x,
                on_cpu(
                    "kernel", [&] { return kernel_takes(call.form, call.options, true); },
                    [&]() -> TensorTuple<2> {
                      const auto out = differentiate_by_kernel(call.form, call.options, call.factor, nullptr, true);
                      return {call.read_keys ? out.w : out.y, out.final_state};
                    }),
                on_gpu(
                    "kernel", [&] { return gpu_takes_step(call); },
                    [&] { return step_on_gpu(call, cuda::machine_of(call.form.x)); }),
                otherwise("ATen", [&] { return step_by_aten(call); }));
}

}  // namespace

TensorTuple<2> forward(ScanCall call) {
  const NoAutocast exact;
  auto& [y, x, w, v, g, beta, bonus, initial, final_grad] = call.form;
  (call.read_keys ? y : w) = call.query;
  (call.read_keys ? call.options.want_w : call.options.want_y) = true;
  if (call.initial_state) initial = *call.initial_state;
  if (x.size(1) == 1 && !call.cu_seqlens && !call.options.wide_read) return compute_step(call);
  const auto out = compute(call);
  const auto type = call.options.wide_read ? call.options.type : v.scalar_type();
  return {(call.read_keys ? out.w : out.y).to(type), first_of_copies(out.final_state, call.state_heads)};
}

FormOutputs backward(ScanCall call, const OptionalTensor& grad_o, const OptionalTensor& grad_state, bool want_gate) {
  const NoAutocast exact;
  auto& [y, x, w, v, g, beta, bonus, initial, final_grad] = call.form;
  (call.read_keys ? y : w) = call.query;
  if (grad_o) (call.read_keys ? w : y) = *grad_o;
  if (call.initial_state) initial = *call.initial_state;
  if (grad_state) final_grad = *grad_state;
  call.options.want_rest = true;
  call.options.want_gate = want_gate;
  (call.read_keys ? call.options.want_y : call.options.want_w) = true;
  FormOutputs out = compute(call);
  if (!call.read_keys) std::swap(out.y, out.w);
  return out;
}

TensorTuple<2> outputs_meta(const Sizes& sizes, bool read_keys, const Tensor& v, at::ScalarType type) {
  return {sizes.empty(read_keys ? "BTHV" : "BTHK", v.options()), sizes.empty("NSKV", v.options().dtype(type))};
}

std::string_view gate_shape(const OptionalTensor& g) {
  constexpr std::string_view kShapes[] = {"h", "hK", "BTh"};
  return g && g->dim() >= 1 && g->dim() <= 3 ? kShapes[g->dim() - 1] : "BThK";
}

Tensor timed_gate(const OptionalTensor& g, int64_t tokens) {
  if (!g) return {};
  if (g->dim() >= 3) return *g;
  std::vector<int64_t> sizes = g->sizes().vec();
  sizes.insert(sizes.begin(), {1, tokens});
  return g->expand(sizes);
}

Tensor gate_gradient(const Tensor& wide, const Tensor& g) {
  if (g.dim() >= 3) return sum_heads(wide, g.size(2)).to(g.scalar_type());
  return sum_heads(wide.sum(at::IntArrayRef{0, 1}), g.size(0), 0).to(g.scalar_type());
}

}  // namespace cortado::gated
