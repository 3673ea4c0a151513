// slot_scan as an operator: checks, shapes, autograd. Computed as the gated scan's form, also by its kernels, with
// factors instead of logs as decays (DecayKind::kFactors).
#include "cortado/primitives/slot_scan/op.h"

#include "cortado/primitives/gated_scan/scan.h"

namespace cortado {
namespace {

constexpr const char* kSlotScan = "slot_scan";

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

Sizes check(const SlotArguments& in) {
  fail_input_if(in.read != "slot" && in.read != "channel", "[slot_scan] read must be \"slot\" or \"channel\", got \"",
                in.read, "\"");
  const auto slots = [](const Tensor& y) { return y.dim() == 2 ? "TK" : "BThK"; };
  return Sizes(kSlotScan, in.cu_seqlens,
               {{"x", in.x, "BThV"},
                {"w", in.w, slots(in.w)},
                {"decay", in.decay, slots(in.decay)},
                {"q", in.q, in.read_slots() ? "BTqK" : "BTqV"},
                {"initial_state", in.initial_state, "NSKV"}});
}

TensorTuple<2> slot_meta(const SlotArguments& in) {
  return gated::outputs_meta(check(in), in.read_slots(), in.x, in.type());
}

// [T,M] -> [rows,T,1,M] as a view; other shapes are unchanged.
Tensor slot_timed(const Tensor& y, int64_t rows) {
  return y.dim() == 2 ? y.unsqueeze(0).unsqueeze(2).expand({rows, -1, -1, -1}) : y;
}

gated::ScanCall slot_call(const SlotArguments& in) {
  const Sizes sizes = check(in);  // before factor(), which reads sizes
  return {.name = kSlotScan,
          .q = in.q,
          .k = slot_timed(in.w, in.x.size(0)),
          .v = in.x,
          .read_keys = in.read_slots(),
          .factor = in.factor(),
          .type = in.type(),
          .heads = sizes.number('H'),
          .state_heads = sizes.number('S'),
          .initial_state = in.initial_state,
          .cu_seqlens = in.cu_seqlens,
          .g = slot_timed(in.decay, 1),
          .decay = gated::DecayKind::kFactors};
}

TensorTuple<2> slot_kernel(const SlotArguments& in) { return gated::forward(slot_call(in)); }

// Reduces a gradient [B,T,H,*] to the shape and type of w, x, q or decay.
Tensor gradient_like(const Tensor& wide, const Tensor& y) {
  return y.dim() == 2 ? wide.sum(at::IntArrayRef{0, 2}).to(y.scalar_type()) : gradient_of(y, wide);
}

// The gradient operator's arguments that the scan does not have.
struct SlotGiven {
  const OptionalTensor &grad_o, &grad_state;
  bool need_decay;
};

// Returns the gradients of q, w, x, decay and initial_state.
TensorTuple<5> slot_backward_kernel(const SlotGiven& given, const SlotArguments& in) {
  check(in).expect(
      {{"grad_o", given.grad_o, in.read_slots() ? "BTHV" : "BTHK"}, {"grad_state", given.grad_state, "NSKV"}});
  const auto out = gated::backward(slot_call(in), given.grad_o, given.grad_state, given.need_decay);
  return {gradient_like(out.q, in.q), gradient_like(out.k, in.w), gradient_like(out.v, in.x),
          given.need_decay ? gradient_like(out.g, in.decay) : no_gradient(in.q),
          in.initial_state ? gradient_of(*in.initial_state, out.initial_state, 1) : no_gradient(in.q)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "slot_scan(Tensor q, Tensor w, Tensor x, Tensor decay, *, str read=\"slot\", float? scale=None, "
                  "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor final_state)",
                  gathered<decltype(slot_scan), slot_kernel>, gathered<decltype(slot_scan), slot_meta>,
                  gathered_gradient<void(const OptionalTensor&, const OptionalTensor&, bool), decltype(slot_scan),
                                    slot_backward_kernel>,
                  {.given = "Tensor? grad_o, Tensor? grad_state, bool need_decay",
                   .inputs = {"q", "w", "x", "decay", "initial_state"},
                   .optional_work = "decay"});
}

TensorTuple<2> slot_scan(const Tensor& q, const Tensor& w, const Tensor& x, const Tensor& decay, std::string_view read,
                         std::optional<double> scale, const OptionalTensor& initial_state,
                         const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(slot_scan)>("cortado::slot_scan");
  return op.call(q, w, x, decay, read, scale, initial_state, cu_seqlens);
}

}  // namespace cortado
