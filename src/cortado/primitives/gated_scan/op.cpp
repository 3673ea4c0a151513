// gated_scan as an operator: checks, shapes, autograd, and the choice of the form.
#include "cortado/primitives/gated_scan/op.h"

#include <torch/library.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/differentiable.h"
#include "cortado/primitives/gated_scan/chunked.h"
#include "cortado/primitives/gated_scan/on_cpu.h"
#include "cortado/primitives/gates.h"

namespace cortado {

namespace {

constexpr std::string_view kName = "gated_scan";

bool reads_keys(std::string_view read) {
  fail_input_if(read != "key" && read != "value", "[", kName, "] read must be \"key\" or \"value\", got \"", read,
                "\"");
  return read == "key";
}

struct Arguments {
  const Tensor &q, &k, &v;
  const OptionalTensor &g, &bonus, &initial_state, &cu_seqlens;
  std::string_view read;
  std::optional<double> scale;
  bool reverse;
};

// --- Shapes: everything about them that does not need the tensors' contents. ---

struct Shape {
  c10::SymInt batch, tokens, heads, state_heads, rows, keys, values;
};

void check_types(const Arguments& in) {
  const std::pair<const char*, OptionalTensor> inputs[] = {
      {"q", in.q}, {"k", in.k}, {"v", in.v}, {"g", in.g}, {"bonus", in.bonus}, {"initial_state", in.initial_state}};
  for (const auto& [name, x] : inputs) {
    fail_input_if(x && !x->is_floating_point(), "[", kName, "] ", name, " must be a floating-point tensor, got ",
                  x ? x->scalar_type() : at::kFloat);
  }
}

Shape check(const Arguments& in) {
  const bool read_keys = reads_keys(in.read);
  check_types(in);
  expect_shape(kName, "k", in.k, {-1, -1, -1, -1});
  Shape shape{};
  shape.batch = in.k.sym_size(0);
  shape.tokens = in.k.sym_size(1);
  shape.keys = in.k.sym_size(3);
  expect_shape(kName, "v", in.v, {shape.batch, shape.tokens, -1, -1});
  shape.values = in.v.sym_size(3);
  expect_shape(kName, "q", in.q, {shape.batch, shape.tokens, -1, read_keys ? shape.keys : shape.values});
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
    fail_input_if(!read_keys, "[", kName, "] bonus needs read=\"key\"");
    expect_shape(kName, "bonus", *in.bonus, {-1, shape.keys});
    const c10::SymInt count = in.bonus->sym_size(0);
    fail_input_if(count < 1 || shape.heads % count != 0, "[", kName, "] the heads of bonus (", count,
                  ") must divide the output's, ", shape.heads);
  }
  return shape;
}

at::ScalarType type_of(const Arguments& in) {
  return accumulation_type({in.q, in.k, in.v, in.g, in.bonus, in.initial_state});
}

double scale_of(const Arguments& in) {
  if (in.scale) return *in.scale;
  return in.read == "key" ? 1 / std::sqrt(static_cast<double>(in.k.size(3))) : 1.0;
}

std::tuple<Tensor, Tensor> scan_meta(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                                     std::string_view read, std::optional<double> scale, const OptionalTensor& bonus,
                                     const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                                     bool reverse) {
  const Arguments in{q, k, v, g, bonus, initial_state, cu_seqlens, read, scale, reverse};
  const Shape shape = check(in);
  const c10::SymInt width = in.read == "key" ? shape.values : shape.keys;
  return {at::empty_symint({shape.batch, shape.tokens, shape.heads, width}, v.options()),
          at::empty_symint({shape.rows, shape.state_heads, shape.keys, shape.values}, v.options().dtype(type_of(in)))};
}

// --- The step: one token, no chunks. ---

// [B,1,h,X] -> [B,Hs,X]
Tensor token(const Tensor& x, int64_t heads, at::ScalarType type) {
  return expand_heads(x.select(1, 0).to(type), heads, 1);
}

std::tuple<Tensor, Tensor> step(const Arguments& in, int64_t heads, int64_t state_heads) {
  const auto type = type_of(in);
  const int64_t batch = in.k.size(0), keys = in.k.size(3), values = in.v.size(3), group = heads / state_heads;
  const bool read_keys = in.read == "key";
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
    const Tensor o = at::matmul(q.view({batch, state_heads, group, keys}), before).add_(self).mul_(scale_of(in));
    return {o.view({batch, 1, heads, values}).to(in.v.scalar_type()), state};
  }
  read = read.reshape({batch * state_heads, keys, values});
  const Tensor o = at::bmm(q, read_keys ? read : read.transpose(1, 2)).mul_(scale_of(in));
  return {o.view({batch, 1, heads, read_keys ? values : keys}).to(in.v.scalar_type()), state};
}

// --- The chunked form: inputs and results in the operator's shapes. ---

// On the batch or on every packed sequence.
gated::FormOutputs run_form(const Arguments& in, const gated::FormInputs& form, const gated::FormOptions& options) {
  std::vector<int64_t> bounds;
  if (in.cu_seqlens) bounds = sequence_bounds(kName, *in.cu_seqlens, in.k.size(1));
  return gated::compute_form(form, options, scale_of(in), in.cu_seqlens ? &bounds : nullptr);
}

gated::FormInputs form_inputs(const Arguments& in) {
  gated::FormInputs form;
  (in.read == "key" ? form.y : form.w) = in.q;
  form.x = in.k;
  form.v = in.v;
  form.g = timed_gate(in.g, in.k.size(1));
  if (in.bonus) form.bonus = *in.bonus;
  return form;
}

std::tuple<Tensor, Tensor> scan_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                                       std::string_view read, std::optional<double> scale, const OptionalTensor& bonus,
                                       const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                                       bool reverse) {
  const NoAutocast exact;
  const Arguments in{q, k, v, g, bonus, initial_state, cu_seqlens, read, scale, reverse};
  const Shape shape = check(in);
  const int64_t heads = shape.heads.expect_int(), state_heads = shape.state_heads.expect_int();
  gated::FormInputs form = form_inputs(in);
  gated::FormOptions options{.heads = heads, .type = type_of(in), .reverse = reverse};
  (read == "key" ? options.want_w : options.want_y) = true;
  if (k.size(1) == 1 && !cu_seqlens) {
    if (initial_state) form.initial = *initial_state;
    if (!gated::step_kernel_takes(form, options)) return step(in, heads, state_heads);
    const auto out = gated::step_by_kernel(form, options, scale_of(in));
    return {read == "key" ? out.w : out.y, out.final_state};
  }
  if (initial_state) form.initial = expand_heads(*initial_state, heads, 1);
  const auto out = run_form(in, form, options);
  const Tensor o = (read == "key" ? out.w : out.y).to(v.scalar_type());
  return {o, first_of_copies(out.final_state, state_heads)};
}

// --- The backward. ---

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, g, bonus, initial_state

// The arguments in the order of the schema. A gradient that is not wanted, or of what was not given, has shape [0].
Gradients backward_meta(const OptionalTensor&, const OptionalTensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                        const OptionalTensor& g, const OptionalTensor& bonus, const OptionalTensor& initial_state,
                        const OptionalTensor&, std::string_view, std::optional<double>, bool, bool need_gate) {
  const auto like = [&](const OptionalTensor& x, bool wanted) {
    return x && wanted ? at::empty_symint(x->sym_sizes(), x->options()) : at::empty({0}, q.options());
  };
  return {like(q, true),      like(k, true),     like(v, true),
          like(g, need_gate), like(bonus, true), like(initial_state, true)};
}

Gradients backward_kernel(const OptionalTensor& grad_o, const OptionalTensor& grad_state, const Tensor& q,
                          const Tensor& k, const Tensor& v, const OptionalTensor& g, const OptionalTensor& bonus,
                          const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, std::string_view read,
                          std::optional<double> scale, bool reverse, bool need_gate) {
  const NoAutocast exact;
  const Arguments in{q, k, v, g, bonus, initial_state, cu_seqlens, read, scale, reverse};
  const Shape shape = check(in);
  const int64_t heads = shape.heads.expect_int();
  const bool read_keys = read == "key";
  gated::FormOptions options{.heads = heads, .type = type_of(in), .reverse = reverse};
  options.want_rest = true;
  options.want_gate = g && need_gate;
  (read_keys ? options.want_y : options.want_w) = true;

  gated::FormInputs form = form_inputs(in);
  if (initial_state) form.initial = expand_heads(*initial_state, heads, 1);
  if (grad_state) form.final_grad = spread_to_copies(*grad_state, heads);
  if (grad_o) (read_keys ? form.w : form.y) = *grad_o;
  const auto out = run_form(in, form, options);
  const Tensor none = at::empty({0}, q.options());
  return {sum_heads(read_keys ? out.y : out.w, q.size(2)).to(q.scalar_type()),
          sum_heads(out.x, k.size(2)).to(k.scalar_type()),
          sum_heads(out.v, v.size(2)).to(v.scalar_type()),
          options.want_gate ? gate_gradient(out.g, *g) : none,
          bonus ? sum_heads(out.bonus.sum(0), bonus->size(0), 0).to(bonus->scalar_type()) : none,
          initial_state ? sum_heads(out.initial, initial_state->size(1), 1).to(initial_state->scalar_type()) : none};
}

const auto& scan_operator() {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("cortado::gated_scan", "").typed<decltype(scan_kernel)>();
  return handle;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "gated_scan(Tensor q, Tensor k, Tensor v, Tensor? g=None, *, str read=\"key\", float? scale=None, "
      "Tensor? bonus=None, Tensor? initial_state=None, Tensor? cu_seqlens=None, bool reverse=False) "
      "-> (Tensor o, Tensor final_state)");
  m.def(
      "gated_scan_backward(Tensor? grad_o, Tensor? grad_state, Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? bonus, "
      "Tensor? initial_state, Tensor? cu_seqlens, str read, float? scale, bool reverse, bool need_gate) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbonus, Tensor dinitial_state)");
}

TORCH_LIBRARY_IMPL(cortado, CompositeExplicitAutograd, m) {
  m.impl("gated_scan", &scan_kernel);
  m.impl("gated_scan_backward", &backward_kernel);
}

TORCH_LIBRARY_IMPL(cortado, Meta, m) {
  m.impl("gated_scan", &scan_meta);
  m.impl("gated_scan_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(cortado, Autograd, m) {
  m.impl("gated_scan",
         differentiable_by("cortado::gated_scan_backward", {"q", "k", "v", "g", "bonus", "initial_state"}, "g"));
  m.impl("gated_scan_backward", once_differentiable());
}

std::tuple<Tensor, Tensor> gated_scan(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& g,
                                      std::string_view read, std::optional<double> scale,
                                      const std::optional<Tensor>& bonus, const std::optional<Tensor>& initial_state,
                                      const std::optional<Tensor>& cu_seqlens, bool reverse) {
  return scan_operator().call(q, k, v, g, read, scale, bonus, initial_state, cu_seqlens, reverse);
}

}  // namespace cortado
