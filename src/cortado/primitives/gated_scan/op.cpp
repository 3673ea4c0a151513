// gated_scan as an operator: checks, shapes, autograd, and the choice of the form.
#include "cortado/primitives/gated_scan/op.h"

#include "cortado/primitives/gated_scan/choose.h"
#include "cortado/primitives/gated_scan/chunked.h"
#include "cortado/primitives/gated_scan/on_cpu.h"
#include "cortado/primitives/gates.h"
#include "cortado/primitives/operator.h"

namespace cortado {

namespace {

constexpr std::string_view kName = "gated_scan";

// In the order of the schema.
struct Arguments {
  const Tensor &q, &k, &v;
  const OptionalTensor& g;
  std::string_view read;
  std::optional<double> scale;
  const OptionalTensor &bonus, &initial_state, &cu_seqlens;
  bool reverse;

  bool read_keys() const { return read == "key"; }
  at::ScalarType type() const { return accumulation_type({q, k, v, g, bonus, initial_state}); }
  double factor() const { return scale.value_or(read_keys() ? 1 / std::sqrt(static_cast<double>(k.size(3))) : 1.0); }
};

// --- Shapes: everything about them that does not need the tensors' contents. ---

struct Shape {
  c10::SymInt batch, tokens, heads, state_heads, rows, keys, values;
};

Shape check(const Arguments& in) {
  fail_input_if(in.read != "key" && in.read != "value", "[", kName, "] read must be \"key\" or \"value\", got \"",
                in.read, "\"");
  expect_floating(
      kName,
      {{"q", in.q}, {"k", in.k}, {"v", in.v}, {"g", in.g}, {"bonus", in.bonus}, {"initial_state", in.initial_state}});
  expect_shape(kName, "k", in.k, {-1, -1, -1, -1});
  Shape shape{};
  shape.batch = in.k.sym_size(0);
  shape.tokens = in.k.sym_size(1);
  shape.keys = in.k.sym_size(3);
  expect_shape(kName, "v", in.v, {shape.batch, shape.tokens, -1, -1});
  shape.values = in.v.sym_size(3);
  expect_shape(kName, "q", in.q, {shape.batch, shape.tokens, -1, in.read_keys() ? shape.keys : shape.values});
  shape.state_heads = common_heads(
      kName, {{"k", in.k.sym_size(2)},
              {"v", in.v.sym_size(2)},
              {"g", in.g ? gate_heads(kName, *in.g, shape.batch, shape.tokens, shape.keys) : c10::SymInt(1)}});
  shape.heads = output_heads(kName, in.q.sym_size(2), shape.state_heads);
  shape.rows = packed_rows(kName, in.cu_seqlens, shape.batch);
  if (in.initial_state) {
    expect_shape(kName, "initial_state", *in.initial_state, {shape.rows, shape.state_heads, shape.keys, shape.values});
  }
  if (in.bonus) {
    fail_input_if(!in.read_keys(), "[", kName, "] bonus needs read=\"key\"");
    expect_shape(kName, "bonus", *in.bonus, {-1, shape.keys});
    const c10::SymInt count = in.bonus->sym_size(0);
    fail_input_if(count < 1 || shape.heads % count != 0, "[", kName, "] the heads of bonus (", count,
                  ") must divide the output's, ", shape.heads);
  }
  return shape;
}

std::tuple<Tensor, Tensor> scan_meta(const Arguments& in) {
  const Shape shape = check(in);
  const auto states = in.v.options().dtype(in.type());
  return {at::empty_symint({shape.batch, shape.tokens, shape.heads, in.read_keys() ? shape.values : shape.keys},
                           in.v.options()),
          at::empty_symint({shape.rows, shape.state_heads, shape.keys, shape.values}, states)};
}

// --- The step: one token, no chunks. ---

// [B,1,h,X] -> [B,Hs,X]
Tensor token(const Tensor& x, int64_t heads, at::ScalarType type) {
  return expand_heads(x.select(1, 0).to(type), heads, 1);
}

std::tuple<Tensor, Tensor> step(const Arguments& in, int64_t heads, int64_t state_heads) {
  const auto type = in.type();
  const int64_t batch = in.k.size(0), keys = in.k.size(3), values = in.v.size(3), group = heads / state_heads;
  const Tensor k = token(in.k, state_heads, type).unsqueeze(-1), v = token(in.v, state_heads, type).unsqueeze(-2);
  Tensor state;
  if (in.initial_state) {
    const Tensor start = in.initial_state->to(type);
    state = in.g ? (start * token_decay(*in.g, state_heads, type)).addcmul_(k, v) : at::addcmul(start, k, v);
  } else {
    state = k * v;
  }
  const Tensor q = expand_heads(in.q.select(1, 0).to(type), heads, 1).reshape({batch * state_heads, group, -1});
  Tensor read = state;
  if (in.bonus) {
    const Tensor bonus = expand_heads(in.bonus->to(type), heads, 0).view({1, state_heads, group, keys});
    const Tensor self = (q.view({batch, state_heads, group, keys}) * bonus * k.transpose(-1, -2)).sum(-1, true) * v;
    const Tensor before = in.initial_state ? in.initial_state->to(type) : at::zeros_like(state);
    const Tensor o = at::matmul(q.view({batch, state_heads, group, keys}), before).add_(self).mul_(in.factor());
    return {o.view({batch, 1, heads, values}).to(in.v.scalar_type()), state};
  }
  read = read.reshape({batch * state_heads, keys, values});
  const Tensor o = at::bmm(q, in.read_keys() ? read : read.transpose(1, 2)).mul_(in.factor());
  return {o.view({batch, 1, heads, in.read_keys() ? values : keys}).to(in.v.scalar_type()), state};
}

// --- The chunked form: inputs and results in the operator's shapes. ---

// On the batch or on every packed sequence.
gated::FormOutputs run_form(const Arguments& in, const gated::FormInputs& form, const gated::FormOptions& options) {
  return gated::compute_form(form, options, in.factor(), Bounds(kName, in.cu_seqlens, in.k.size(1)).get());
}

gated::FormInputs form_inputs(const Arguments& in) {
  gated::FormInputs form;
  (in.read_keys() ? form.y : form.w) = in.q;
  form.x = in.k;
  form.v = in.v;
  form.g = timed_gate(in.g, in.k.size(1));
  if (in.bonus) form.bonus = *in.bonus;
  return form;
}

std::tuple<Tensor, Tensor> scan_kernel(const Arguments& in) {
  const NoAutocast exact;
  const Shape shape = check(in);
  const int64_t heads = shape.heads.expect_int(), state_heads = shape.state_heads.expect_int();
  gated::FormInputs form = form_inputs(in);
  gated::FormOptions options{.heads = heads, .type = in.type(), .reverse = in.reverse};
  (in.read_keys() ? options.want_w : options.want_y) = true;
  if (in.k.size(1) == 1 && !in.cu_seqlens) {
    if (in.initial_state) form.initial = *in.initial_state;
    if (!gated::step_kernel_takes(form, options)) return step(in, heads, state_heads);
    const auto out = gated::step_by_kernel(form, options, in.factor());
    return {in.read_keys() ? out.w : out.y, out.final_state};
  }
  if (in.initial_state) form.initial = expand_heads(*in.initial_state, heads, 1);
  const auto out = run_form(in, form, options);
  const Tensor o = (in.read_keys() ? out.w : out.y).to(in.v.scalar_type());
  return {o, first_of_copies(out.final_state, state_heads)};
}

// --- The backward. ---

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, g, bonus, initial_state

// The arguments in the order of the schema.
Gradients backward_meta(const OptionalTensor&, const OptionalTensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& g, const OptionalTensor& bonus, const OptionalTensor& initial_state,
                        const OptionalTensor&, std::string_view, std::optional<double>, bool, bool need_gate) {
  return {gradient_meta(q, q),     gradient_meta(k, q),
          gradient_meta(v, q),     gradient_meta(g, q, need_gate),
          gradient_meta(bonus, q), gradient_meta(initial_state, q)};
}

Gradients backward_kernel(const OptionalTensor& grad_o, const OptionalTensor& grad_state, const Tensor& q,
                          const Tensor& k, const Tensor& v, const OptionalTensor& g, const OptionalTensor& bonus,
                          const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, std::string_view read,
                          std::optional<double> scale, bool reverse, bool need_gate) {
  const NoAutocast exact;
  const Arguments in{q, k, v, g, read, scale, bonus, initial_state, cu_seqlens, reverse};
  const Shape shape = check(in);
  const int64_t heads = shape.heads.expect_int();
  gated::FormOptions options{.heads = heads, .type = in.type(), .reverse = reverse};
  options.want_rest = true;
  options.want_gate = g && need_gate;
  (in.read_keys() ? options.want_y : options.want_w) = true;

  gated::FormInputs form = form_inputs(in);
  if (initial_state) form.initial = expand_heads(*initial_state, heads, 1);
  if (grad_state) form.final_grad = spread_to_copies(*grad_state, heads);
  if (grad_o) (in.read_keys() ? form.w : form.y) = *grad_o;
  const auto out = run_form(in, form, options);
  const Tensor none = no_gradient(q);
  return {gradient_of(q, in.read_keys() ? out.y : out.w),
          gradient_of(k, out.x),
          gradient_of(v, out.v),
          options.want_gate ? gate_gradient(out.g, *g) : none,
          bonus ? gradient_of(*bonus, out.bonus.sum(0), 0) : none,
          initial_state ? gradient_of(*initial_state, out.initial, 1) : none};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(
      m,
      "gated_scan(Tensor q, Tensor k, Tensor v, Tensor? g=None, *, str read=\"key\", float? scale=None, "
      "Tensor? bonus=None, Tensor? initial_state=None, Tensor? cu_seqlens=None, bool reverse=False) "
      "-> (Tensor o, Tensor final_state)",
      gathered<decltype(gated_scan), scan_kernel>, gathered<decltype(gated_scan), scan_meta>,
      differentiable_by("cortado::gated_scan_backward", {"q", "k", "v", "g", "bonus", "initial_state"}, "g"));
  define_operator(
      m,
      "gated_scan_backward(Tensor? grad_o, Tensor? grad_state, Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? bonus, "
      "Tensor? initial_state, Tensor? cu_seqlens, str read, float? scale, bool reverse, bool need_gate) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbonus, Tensor dinitial_state)",
      backward_kernel, backward_meta, once_differentiable());
}

std::tuple<Tensor, Tensor> gated_scan(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& g,
                                      std::string_view read, std::optional<double> scale,
                                      const std::optional<Tensor>& bonus, const std::optional<Tensor>& initial_state,
                                      const std::optional<Tensor>& cu_seqlens, bool reverse) {
  static const auto op = find_operator<decltype(gated_scan)>("cortado::gated_scan");
  return op.call(q, k, v, g, read, scale, bonus, initial_state, cu_seqlens, reverse);
}

}  // namespace cortado
