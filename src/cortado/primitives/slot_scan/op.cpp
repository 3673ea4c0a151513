// slot_scan as an operator: checks, shapes, autograd. Its forms are the gated scan's, the kernel too, with decays of
// their second kind: factors instead of logs.
#include "cortado/primitives/slot_scan/op.h"

#include "cortado/primitives/gated_scan/choose.h"
#include "cortado/primitives/gated_scan/on_cpu.h"
#include "cortado/primitives/gates.h"
#include "cortado/primitives/operator.h"

namespace cortado {

namespace {

constexpr std::string_view kSlotScan = "slot_scan";

// Tokens a chunk: products of so many decays have to be finite (README.md).
constexpr int64_t kSlotChunk = 32;

// In the order of the schema.
struct SlotArguments {
  const Tensor &q, &w, &x, &decay;
  std::string_view read;
  std::optional<double> scale;
  const OptionalTensor &initial_state, &cu_seqlens;

  bool read_slots() const { return read == "slot"; }
  at::ScalarType type() const { return accumulation_type({q, w, x, decay, initial_state}); }
  double factor() const { return scale.value_or(read_slots() ? 1.0 : 1 / std::sqrt(static_cast<double>(x.size(3)))); }
};

struct SlotShape {
  c10::SymInt batch, tokens, heads, state_heads, rows, slots, channels;
};

// The heads of w or decay, [B,T,h,M] or [T,M]; checks its shape.
c10::SymInt check_slots(const char* name, const Tensor& y, const SlotShape& shape) {
  if (y.dim() == 2) {
    expect_shape(kSlotScan, name, y, {shape.tokens, shape.slots});
    return 1;
  }
  expect_shape(kSlotScan, name, y, {shape.batch, shape.tokens, -1, shape.slots});
  return y.sym_size(2);
}

SlotShape check(const SlotArguments& in) {
  fail_input_if(in.read != "slot" && in.read != "channel", "[slot_scan] read must be \"slot\" or \"channel\", got \"",
                in.read, "\"");
  expect_floating(kSlotScan,
                  {{"q", in.q}, {"w", in.w}, {"x", in.x}, {"decay", in.decay}, {"initial_state", in.initial_state}});
  expect_shape(kSlotScan, "x", in.x, {-1, -1, -1, -1});
  SlotShape shape{};
  shape.batch = in.x.sym_size(0);
  shape.tokens = in.x.sym_size(1);
  shape.channels = in.x.sym_size(3);
  shape.slots = in.w.dim() > 0 ? in.w.sym_size(-1) : c10::SymInt(-1);
  const c10::SymInt w_heads = check_slots("w", in.w, shape), decay_heads = check_slots("decay", in.decay, shape);
  expect_shape(kSlotScan, "q", in.q, {shape.batch, shape.tokens, -1, in.read_slots() ? shape.slots : shape.channels});
  shape.state_heads = common_heads(kSlotScan, {{"w", w_heads}, {"x", in.x.sym_size(2)}, {"decay", decay_heads}});
  shape.heads = output_heads(kSlotScan, in.q.sym_size(2), shape.state_heads);
  shape.rows = packed_rows(kSlotScan, in.cu_seqlens, shape.batch);
  if (in.initial_state) {
    expect_shape(kSlotScan, "initial_state", *in.initial_state,
                 {shape.rows, shape.state_heads, shape.slots, shape.channels});
  }
  return shape;
}

std::tuple<Tensor, Tensor> slot_meta(const SlotArguments& in) {
  const SlotShape shape = check(in);
  return {
      at::empty_symint({shape.batch, shape.tokens, shape.heads, in.read_slots() ? shape.channels : shape.slots},
                       in.x.options()),
      at::empty_symint({shape.rows, shape.state_heads, shape.slots, shape.channels}, in.x.options().dtype(in.type()))};
}

// [T,M] -> [rows,T,1,M], a view; anything else as it is.
Tensor slot_timed(const Tensor& y, int64_t rows) {
  return y.dim() == 2 ? y.unsqueeze(0).unsqueeze(2).expand({rows, -1, -1, -1}) : y;
}

// One token: a multiply-add of the state and a product.
std::tuple<Tensor, Tensor> slot_step(const SlotArguments& in, int64_t heads, int64_t state_heads) {
  const auto type = in.type();
  const auto token = [&](const Tensor& y) {
    return expand_heads(slot_timed(y, 1).select(1, 0).to(type), state_heads, 1);
  };
  const Tensor w = token(in.w).unsqueeze(-1), x = token(in.x).unsqueeze(-2);
  Tensor state = w * x;
  if (in.initial_state) state = at::addcmul(state, in.initial_state->to(type), token(in.decay).unsqueeze(-1));
  const int64_t batch = in.x.size(0);
  const Tensor q = expand_heads(in.q.select(1, 0).to(type), heads, 1);
  const Tensor rows = q.reshape({batch * state_heads, heads / state_heads, q.size(2)});
  const Tensor read = state.reshape({batch * state_heads, state.size(2), state.size(3)});
  const Tensor o = at::bmm(rows, in.read_slots() ? read : read.transpose(1, 2)).mul_(in.factor());
  return {o.view({batch, 1, heads, o.size(2)}).to(in.x.scalar_type()), state};
}

// The form's inputs without the states and, in q's counterpart, the incoming gradient (gated_scan/chunked.h).
gated::FormInputs slot_form(const SlotArguments& in) {
  gated::FormInputs form;
  (in.read_slots() ? form.y : form.w) = in.q;
  form.x = slot_timed(in.w, in.x.size(0));
  form.v = in.x;
  form.g = slot_timed(in.decay, 1);
  return form;
}

gated::FormOutputs run_slots(const SlotArguments& in, const gated::FormInputs& form,
                             const gated::FormOptions& options) {
  return gated::compute_form(form, options, in.factor(), Bounds(kSlotScan, in.cu_seqlens, in.x.size(1)).get());
}

gated::FormOptions slot_options(const SlotArguments& in, int64_t heads) {
  gated::FormOptions options{.heads = heads, .type = in.type(), .decay = gated::DecayKind::kFactors};
  options.chunk = kSlotChunk;
  return options;
}

std::tuple<Tensor, Tensor> slot_kernel(const SlotArguments& in) {
  const NoAutocast exact;
  const SlotShape shape = check(in);
  const int64_t heads = shape.heads.expect_int(), state_heads = shape.state_heads.expect_int();
  gated::FormInputs form = slot_form(in);
  gated::FormOptions options = slot_options(in, heads);
  (in.read_slots() ? options.want_w : options.want_y) = true;
  if (in.x.size(1) == 1 && !in.cu_seqlens) {
    if (in.initial_state) form.initial = *in.initial_state;
    if (!gated::step_kernel_takes(form, options)) return slot_step(in, heads, state_heads);
    const auto out = gated::step_by_kernel(form, options, in.factor());
    return {in.read_slots() ? out.w : out.y, out.final_state};
  }
  if (in.initial_state) form.initial = expand_heads(*in.initial_state, heads, 1);
  const auto out = run_slots(in, form, options);
  const Tensor o = (in.read_slots() ? out.w : out.y).to(in.x.scalar_type());
  return {o, first_of_copies(out.final_state, state_heads)};
}

// --- The backward. ---

using SlotGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, w, x, decay, initial_state

SlotGradients slot_backward_meta(const OptionalTensor&, const OptionalTensor&, const Tensor& q, const Tensor& w,
                                 const Tensor& x, const Tensor& decay, const OptionalTensor& initial_state,
                                 const OptionalTensor&, std::string_view, std::optional<double>, bool need_decay) {
  return {gradient_meta(q, q), gradient_meta(w, q), gradient_meta(x, q), gradient_meta(decay, q, need_decay),
          gradient_meta(initial_state, q)};
}

// [B,T,H,*] -> the shape and type of w, x, q or decay.
Tensor gradient_like(const Tensor& wide, const Tensor& y) {
  return y.dim() == 2 ? wide.sum(at::IntArrayRef{0, 2}).to(y.scalar_type()) : gradient_of(y, wide);
}

SlotGradients slot_backward_kernel(const OptionalTensor& grad_o, const OptionalTensor& grad_state, const Tensor& q,
                                   const Tensor& w, const Tensor& x, const Tensor& decay,
                                   const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                                   std::string_view read, std::optional<double> scale, bool need_decay) {
  const NoAutocast exact;
  const SlotArguments in{q, w, x, decay, read, scale, initial_state, cu_seqlens};
  const SlotShape shape = check(in);
  const int64_t heads = shape.heads.expect_int();
  gated::FormOptions options = slot_options(in, heads);
  options.want_rest = true;
  options.want_gate = need_decay;
  (in.read_slots() ? options.want_y : options.want_w) = true;
  gated::FormInputs form = slot_form(in);
  if (initial_state) form.initial = expand_heads(*initial_state, heads, 1);
  if (grad_state) form.final_grad = spread_to_copies(*grad_state, heads);
  if (grad_o) (in.read_slots() ? form.w : form.y) = *grad_o;
  const auto out = run_slots(in, form, options);
  return {gradient_like(in.read_slots() ? out.y : out.w, q), gradient_like(out.x, w), gradient_like(out.v, x),
          need_decay ? gradient_like(out.g, decay) : no_gradient(q),
          initial_state ? gradient_of(*initial_state, out.initial, 1) : no_gradient(q)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "slot_scan(Tensor q, Tensor w, Tensor x, Tensor decay, *, str read=\"slot\", float? scale=None, "
                  "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor final_state)",
                  gathered<decltype(slot_scan), slot_kernel>, gathered<decltype(slot_scan), slot_meta>,
                  differentiable_by("cortado::slot_scan_backward", {"q", "w", "x", "decay", "initial_state"}, "decay"));
  define_operator(m,
                  "slot_scan_backward(Tensor? grad_o, Tensor? grad_state, Tensor q, Tensor w, Tensor x, Tensor decay, "
                  "Tensor? initial_state, Tensor? cu_seqlens, str read, float? scale, bool need_decay) "
                  "-> (Tensor dq, Tensor dw, Tensor dx, Tensor ddecay, Tensor dinitial_state)",
                  slot_backward_kernel, slot_backward_meta, once_differentiable());
}

std::tuple<Tensor, Tensor> slot_scan(const Tensor& q, const Tensor& w, const Tensor& x, const Tensor& decay,
                                     std::string_view read, std::optional<double> scale,
                                     const std::optional<Tensor>& initial_state,
                                     const std::optional<Tensor>& cu_seqlens) {
  static const auto op = find_operator<decltype(slot_scan)>("cortado::slot_scan");
  return op.call(q, w, x, decay, read, scale, initial_state, cu_seqlens);
}

}  // namespace cortado
