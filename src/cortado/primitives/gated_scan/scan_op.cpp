#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/by_aten.h"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/scan.h"
#include "cortado/primitives/gated_scan/step_on_gpu.h"
#include "cortado/primitives/gated_scan/tokens_on_gpu.h"

namespace cortado::gated {

namespace {

// A call as the symmetric form: q becomes y if it reads along the keys, else w.
struct Form {
  FormInputs in;
  FormOptions wanted;

  explicit Form(const ScanCall& call)
      : in{.y = {},
           .x = call.k,
           .w = {},
           .v = call.v,
           .g = call.g,
           .beta = call.beta,
           .bonus = call.bonus,
           .initial = call.initial_state.value_or(Tensor()),
           .final_grad = {}},
        wanted{.heads = call.heads, .type = call.type, .decay = call.decay, .reverse = call.reverse} {
    (call.read_keys ? in.y : in.w) = call.q;
  }

  // The form whose derivatives are the reads.
  static Form of_reads(const ScanCall& call) {
    Form form(call);
    (call.read_keys ? form.wanted.want_w : form.wanted.want_y) = true;
    form.wanted.wide_read = call.wide_read;
    return form;
  }
  // The form whose derivatives are the gradients: grad_o becomes the argument that q is not.
  static Form of_gradients(const ScanCall& call, const OptionalTensor& grad_o, const OptionalTensor& grad_state,
                           bool want_gate) {
    Form form(call);
    if (grad_o) (call.read_keys ? form.in.w : form.in.y) = *grad_o;
    form.in.final_grad = grad_state.value_or(Tensor());
    form.wanted.want_rest = true;
    form.wanted.want_gate = want_gate;
    (call.read_keys ? form.wanted.want_y : form.wanted.want_w) = true;
    return form;
  }

  // Expands the state to one per output head; its gradient goes to the first of the copies.
  FormInputs with_all_heads() const {
    FormInputs all = in;
    if (in.initial.defined()) all.initial = expand_heads(in.initial, wanted.heads, 1);
    if (in.final_grad.defined() && in.final_grad.size(1) != wanted.heads) {
      const Tensor& given = in.final_grad;
      all.final_grad = at::zeros({given.size(0), wanted.heads, given.size(2), given.size(3)}, given.options());
      all.final_grad.unflatten(1, {given.size(1), -1}).select(2, 0).copy_(given);
    }
    return all;
  }
};

// Computes the reads and the last state, or the gradients, for any number of tokens.
template <typename ByAten>
FormOutputs compute(const ScanCall& call, const Form& form, const char* name, const ByAten& by_aten) {
  const auto& [in, wanted] = form;
  const double factor = call.factor;
  const Bounds bounds(call.name, call.cu_seqlens, in.x.size(1));
  return choose(
      name, in.x,
      on_cpu(
          "kernel", [&] { return kernel_takes(in, wanted, false); },
          [&] { return evaluate_by_kernel(in, wanted, factor, bounds.get(), false); }),
      on_gpu(
          "kernel of chunks", [&] { return gpu_takes(in, wanted, factor); },
          [&] { return evaluate_on_gpu(form.with_all_heads(), wanted, factor, bounds.get(), cuda::machine_of(in.x)); }),
      on_gpu(
          "kernel of tokens", [&] { return tokens_take(in, wanted, factor); },
          [&] {
            return evaluate_by_tokens(form.with_all_heads(), wanted, factor, bounds.get(), cuda::machine_of(in.x));
          }),
      otherwise("ATen", [&] { return by_aten(bounds); }));
}

FormOutputs read(const ScanCall& call, const Form& form) {
  return compute(call, form, call.name, [&](const Bounds& bounds) { return read_by_aten(call, bounds); });
}

// Computes one token, without chunks.
FormOutputs read_token(const ScanCall& call, const Form& form) {
  return choose(
      "scan of one token", call.k,
      on_cpu(
          "kernel", [&] { return kernel_takes(form.in, form.wanted, true); },
          [&] { return evaluate_by_kernel(form.in, form.wanted, call.factor, nullptr, true); }),
      on_gpu(
          "kernel", [&] { return gpu_takes_step(call); }, [&] { return step_on_gpu(call, cuda::machine_of(call.k)); }),
      otherwise("scan", [&] { return read(call, form); }));
}

}  // namespace

Tensor first_of_copies(const Tensor& state, int64_t state_heads) {
  if (state.size(1) == state_heads) return state;
  return state.unflatten(1, {state_heads, state.size(1) / state_heads}).select(2, 0).contiguous();
}

TensorTuple<2> forward(const ScanCall& call) {
  const NoAutocast exact;
  const Form form = Form::of_reads(call);
  const bool token = call.k.size(1) == 1 && !call.cu_seqlens && !call.wide_read;
  const FormOutputs out = token ? read_token(call, form) : read(call, form);
  const auto type = call.wide_read ? call.type : call.v.scalar_type();
  return {(call.read_keys ? out.w : out.y).to(type), first_of_copies(out.final_state, call.state_heads)};
}

ScanGradients backward(const ScanCall& call, const OptionalTensor& grad_o, const OptionalTensor& grad_state,
                       bool want_gate) {
  const NoAutocast exact;
  const Form form = Form::of_gradients(call, grad_o, grad_state, want_gate);
  const FormOutputs out = compute(call, form, "scan backward", [&](const Bounds& bounds) {
    return differentiate_by_aten(call, bounds, grad_o.value_or(Tensor()), grad_state.value_or(Tensor()));
  });
  return {call.read_keys ? out.y : out.w, out.x, out.v, out.g, out.beta, out.bonus, out.initial};
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
