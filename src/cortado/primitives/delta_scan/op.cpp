// delta_scan as an operator: checks, shapes, autograd, and the choice of the form.
#include "cortado/primitives/delta_scan/op.h"

#include "cortado/primitives/delta_scan/chunked.h"
#include "cortado/primitives/delta_scan/on_cpu.h"
#include "cortado/primitives/gates.h"
#include "cortado/primitives/operator.h"

namespace cortado {

namespace {

constexpr std::string_view kName = "delta_scan";

// In the order of the schema.
struct Arguments {
  const Tensor &q, &k, &v, &beta;
  const OptionalTensor& g;
  std::optional<double> scale;
  const OptionalTensor &initial_state, &cu_seqlens;

  at::ScalarType type() const { return accumulation_type({q, k, v, beta, g, initial_state}); }
  double factor() const { return scale.value_or(1 / std::sqrt(static_cast<double>(k.size(3)))); }
};

// --- Shapes: everything about them that does not need the tensors' contents. ---

struct Shape {
  c10::SymInt batch, tokens, heads, state_heads, rows, keys, values;
};

Shape check(const Arguments& in) {
  expect_floating(
      kName,
      {{"q", in.q}, {"k", in.k}, {"v", in.v}, {"beta", in.beta}, {"g", in.g}, {"initial_state", in.initial_state}});
  expect_shape(kName, "k", in.k, {-1, -1, -1, -1});
  Shape shape{};
  shape.batch = in.k.sym_size(0);
  shape.tokens = in.k.sym_size(1);
  shape.keys = in.k.sym_size(3);
  expect_shape(kName, "q", in.q, {shape.batch, shape.tokens, -1, shape.keys});
  expect_shape(kName, "v", in.v, {shape.batch, shape.tokens, -1, -1});
  expect_shape(kName, "beta", in.beta, {shape.batch, shape.tokens, -1});
  shape.values = in.v.sym_size(3);
  const c10::SymInt g_heads = in.g ? gate_heads(kName, *in.g, shape.batch, shape.tokens, shape.keys) : c10::SymInt(1);
  shape.state_heads = common_heads(
      kName, {{"k", in.k.sym_size(2)}, {"v", in.v.sym_size(2)}, {"beta", in.beta.sym_size(2)}, {"g", g_heads}});
  shape.heads = output_heads(kName, in.q.sym_size(2), shape.state_heads);
  shape.rows = packed_rows(kName, in.cu_seqlens, shape.batch);
  if (in.initial_state) {
    expect_shape(kName, "initial_state", *in.initial_state, {shape.rows, shape.state_heads, shape.keys, shape.values});
  }
  return shape;
}

std::tuple<Tensor, Tensor> scan_meta(const Arguments& in) {
  const Shape shape = check(in);
  return {at::empty_symint({shape.batch, shape.tokens, shape.heads, shape.values}, in.v.options()),
          at::empty_symint({shape.rows, shape.state_heads, shape.keys, shape.values}, in.v.options().dtype(in.type()))};
}

// --- The step: one token, no chunks. ---

std::tuple<Tensor, Tensor> step(const Arguments& in, int64_t heads, int64_t state_heads) {
  const auto type = in.type();
  const int64_t batch = in.k.size(0), keys = in.k.size(3), values = in.v.size(3);
  const auto token = [type](const Tensor& x, int64_t wanted) {  // [B,1,h,*] -> [B,H,*]
    return expand_heads(x.select(1, 0).to(type), wanted, 1);
  };
  const Tensor k = token(in.k, state_heads), beta = token(in.beta, state_heads).unsqueeze(-1);
  Tensor u = token(in.v, state_heads) * beta, state;  // [B,Hs,V]
  if (in.initial_state) {
    state = in.initial_state->to(type);
    if (in.g) state = state * token_decay(*in.g, state_heads, type);
    u = u.sub_(at::matmul((k * beta).unsqueeze(-2), state).squeeze(-2));
    state = at::addcmul(state, k.unsqueeze(-1), u.unsqueeze(-2));
  } else {
    state = k.unsqueeze(-1) * u.unsqueeze(-2);
  }
  const Tensor q = token(in.q, heads).reshape({batch * state_heads, heads / state_heads, keys});
  const Tensor o = at::bmm(q, state.reshape({batch * state_heads, keys, values})).mul_(in.factor());
  return {o.view({batch, 1, heads, values}).to(in.v.scalar_type()), state};
}

// With the states as they are given, not yet repeated for every head.
delta::ScanInputs scan_inputs(const Arguments& in) {
  return {in.q, in.k, in.v, in.beta, timed_gate(in.g, in.k.size(1)), in.initial_state.value_or(Tensor())};
}

Bounds bounds_of(const Arguments& in) { return {kName, in.cu_seqlens, in.k.size(1)}; }

// --- The chunked form: inputs and results in the operator's shapes. ---

// Runs `part` on the batch, or on every packed sequence; the gradients are undefined in the forward.
using Part =
    std::function<PackedResult(const delta::ScanInputs& inputs, const Tensor& grad_o, const Tensor& grad_state)>;

PackedResult run(const Arguments& in, const Shape& shape, const Tensor& grad_o, const Tensor& grad_state,
                 const Part& part) {
  const int64_t heads = shape.heads.expect_int();
  const Tensor initial = in.initial_state ? expand_heads(*in.initial_state, heads, 1) : Tensor();
  const delta::ScanInputs inputs{in.q, in.k, in.v, in.beta, timed_gate(in.g, in.k.size(1)), initial};
  const Bounds bounds = bounds_of(in);
  if (!bounds.get()) return part(inputs, grad_o, grad_state);
  return for_each_sequence(
      *bounds.get(), {inputs.q, inputs.k, inputs.v, inputs.beta, inputs.g, grad_o}, {initial, grad_state},
      [&](const std::vector<Tensor>& timed, const std::vector<Tensor>& rows) {
        return part({timed[0], timed[1], timed[2], timed[3], timed[4], rows[0]}, timed[5], rows[1]);
      });
}

std::tuple<Tensor, Tensor> scan_kernel(const Arguments& in) {
  const NoAutocast exact;
  const Shape shape = check(in);
  const int64_t heads = shape.heads.expect_int(), state_heads = shape.state_heads.expect_int();
  const delta::ScanOptions options{.heads = heads, .type = in.type()};
  const delta::ScanInputs inputs = scan_inputs(in);
  if (in.k.size(1) == 1 && !in.cu_seqlens) {
    if (!delta::step_kernel_takes(inputs, options)) return step(in, heads, state_heads);
    const auto out = delta::step_by_kernel(inputs, options, in.factor());
    return {out.o, out.final_state};
  }
  if (delta::kernel_takes(inputs, options)) {
    const auto out = delta::scan_by_kernel(inputs, options, in.factor(), bounds_of(in).get());
    return {out.o, out.final_state};
  }
  const auto result = run(in, shape, {}, {}, [&](const delta::ScanInputs& inputs, const Tensor&, const Tensor&) {
    const auto out = delta::scan(inputs, options);
    return PackedResult{{out.o}, {out.final_state}};
  });
  const Tensor o = result.timed[0].mul(in.factor()).to(in.v.scalar_type());
  return {o, first_of_copies(result.rows[0], state_heads)};
}

// --- The backward. ---

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, beta, g, initial_state

// The arguments in the order of the schema.
Gradients backward_meta(const OptionalTensor&, const OptionalTensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& beta, const OptionalTensor& g, const OptionalTensor& initial_state,
                        const OptionalTensor&, std::optional<double>, bool need_gate) {
  return {gradient_meta(q, q),
          gradient_meta(k, q),
          gradient_meta(v, q),
          gradient_meta(beta, q),
          gradient_meta(g, q, need_gate),
          gradient_meta(initial_state, q)};
}

// With all heads, by the kernel if it takes this. A missing incoming gradient is zero.
delta::ScanGradients gradients(const Arguments& in, const Shape& shape, const OptionalTensor& grad_o,
                               const OptionalTensor& grad_state, const delta::ScanOptions& options) {
  const delta::ScanInputs inputs = scan_inputs(in);
  const delta::ScanOutputs given{grad_o.value_or(Tensor()), grad_state.value_or(Tensor())};
  if (delta::kernel_takes(inputs, options, {given.o, given.final_state})) {
    return delta::scan_backward_by_kernel(inputs, given, options, in.factor(), bounds_of(in).get());
  }
  const Tensor scaled = grad_o ? grad_o->to(options.type) * in.factor()
                               : at::zeros({1}, in.k.options().dtype(options.type))
                                     .expand({in.k.size(0), in.k.size(1), options.heads, in.v.size(3)});
  const auto result = run(in, shape, scaled, grad_state ? spread_to_copies(*grad_state, options.heads) : Tensor(),
                          [&](const delta::ScanInputs& part, const Tensor& part_o, const Tensor& part_state) {
                            const auto out = delta::scan_backward(part, {part_o, part_state}, options);
                            return PackedResult{{out.q, out.k, out.v, out.beta, out.g}, {out.initial}};
                          });
  const auto& timed = result.timed;
  return {timed[0], timed[1], timed[2], timed[3], timed[4], result.rows[0]};
}

Gradients backward_kernel(const OptionalTensor& grad_o, const OptionalTensor& grad_state, const Tensor& q,
                          const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& g,
                          const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                          std::optional<double> scale, bool need_gate) {
  const NoAutocast exact;
  const Arguments in{q, k, v, beta, g, scale, initial_state, cu_seqlens};
  const Shape shape = check(in);
  const int64_t heads = shape.heads.expect_int();
  const delta::ScanOptions options{.heads = heads, .type = in.type(), .want_gate = g && need_gate};
  const delta::ScanGradients out = gradients(in, shape, grad_o, grad_state, options);
  return {gradient_of(q, out.q),
          gradient_of(k, out.k),
          gradient_of(v, out.v),
          gradient_of(beta, out.beta),
          options.want_gate ? gate_gradient(out.g, *g) : no_gradient(q),
          initial_state ? gradient_of(*initial_state, out.initial, 1) : no_gradient(q)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(
      m,
      "delta_scan(Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? g=None, *, float? scale=None, "
      "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor final_state)",
      gathered<decltype(delta_scan), scan_kernel>, gathered<decltype(delta_scan), scan_meta>,
      differentiable_by("cortado::delta_scan_backward", {"q", "k", "v", "beta", "g", "initial_state"}, "g"));
  define_operator(
      m,
      "delta_scan_backward(Tensor? grad_o, Tensor? grad_state, Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? g, "
      "Tensor? initial_state, Tensor? cu_seqlens, float? scale, bool need_gate) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dbeta, Tensor dg, Tensor dinitial_state)",
      backward_kernel, backward_meta, once_differentiable());
}

std::tuple<Tensor, Tensor> delta_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                      const std::optional<Tensor>& g, std::optional<double> scale,
                                      const std::optional<Tensor>& initial_state,
                                      const std::optional<Tensor>& cu_seqlens) {
  static const auto op = find_operator<decltype(delta_scan)>("cortado::delta_scan");
  return op.call(q, k, v, beta, g, scale, initial_state, cu_seqlens);
}

}  // namespace cortado
