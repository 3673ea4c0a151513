// gated_scan as an operator: checks, shapes, autograd.
#include "cortado/primitives/gated_scan/op.h"

#include "cortado/primitives/gated_scan/scan.h"

namespace cortado {
namespace {

constexpr const char* kName = "gated_scan";

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

Sizes check(const Arguments& in) {
  fail_input_if(in.read != "key" && in.read != "value", "[", kName, "] read must be \"key\" or \"value\", got \"",
                in.read, "\"");
  fail_input_if(in.bonus && !in.read_keys(), "[", kName, "] bonus needs read=\"key\"");
  const Sizes sizes(kName, in.cu_seqlens,
                    {{"k", in.k, "BThK"},
                     {"v", in.v, "BThV"},
                     {"q", in.q, in.read_keys() ? "BTqK" : "BTqV"},
                     {"g", in.g, gated::gate_shape(in.g)},
                     {"bonus", in.bonus, "*K"},
                     {"initial_state", in.initial_state, "NSKV"}});
  if (in.bonus) {
    const c10::SymInt count = in.bonus->sym_size(0);
    fail_input_if(count < 1 || sizes['H'] % count != 0, "[", kName, "] the heads of bonus (", count,
                  ") must divide the output's, ", sizes['H']);
  }
  return sizes;
}

TensorTuple<2> scan_meta(const Arguments& in) {
  return gated::outputs_meta(check(in), in.read_keys(), in.v, in.type());
}

gated::ScanCall call_of(const Arguments& in) {
  const Sizes sizes = check(in);  // before factor(), which reads sizes
  return {.name = kName,
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .read_keys = in.read_keys(),
          .factor = in.factor(),
          .type = in.type(),
          .heads = sizes.number('H'),
          .state_heads = sizes.number('S'),
          .initial_state = in.initial_state,
          .cu_seqlens = in.cu_seqlens,
          .g = gated::timed_gate(in.g, in.k.size(1)),
          .bonus = in.bonus.value_or(Tensor()),
          .reverse = in.reverse};
}

TensorTuple<2> scan_kernel(const Arguments& in) { return gated::forward(call_of(in)); }

// As scan_meta, with o in the type of the sums.
TensorTuple<2> scores_meta(const Arguments& in) {
  return gated::outputs_meta(check(in), in.read_keys(), in.v.to(in.type()), in.type());
}
TensorTuple<2> scores_kernel(const Arguments& in) {
  auto call = call_of(in);
  call.wide_read = true;
  return gated::forward(call);
}

// The gradient operators' arguments that the scan does not have.
struct Given {
  const OptionalTensor &grad_o, &grad_state;
  bool need_gate;
};
using GivenArguments = void(const OptionalTensor&, const OptionalTensor&, bool);

// Returns the gradients of q, k, v, g, bonus and initial_state.
TensorTuple<6> backward_kernel(const Given& given, const Arguments& in) {
  const bool want_gate = in.g && given.need_gate;
  check(in).expect(
      {{"grad_o", given.grad_o, in.read_keys() ? "BTHV" : "BTHK"}, {"grad_state", given.grad_state, "NSKV"}});
  const auto out = gated::backward(call_of(in), given.grad_o, given.grad_state, want_gate);
  const Tensor none = no_gradient(in.q);
  return {gradient_of(in.q, out.q),
          gradient_of(in.k, out.k),
          gradient_of(in.v, out.v),
          want_gate ? gated::gate_gradient(out.g, *in.g) : none,
          in.bonus ? gradient_of(*in.bonus, out.bonus.sum(0), 0) : none,
          in.initial_state ? gradient_of(*in.initial_state, out.initial_state, 1) : none};
}

// Rounds the incoming gradient to the operands' type, for which there are kernels.
TensorTuple<6> scores_backward_kernel(const Given& given, const Arguments& in) {
  const OptionalTensor rounded = given.grad_o ? OptionalTensor(given.grad_o->to(in.v.scalar_type())) : std::nullopt;
  return backward_kernel({rounded, given.grad_state, given.need_gate}, in);
}

// Defines an operator with gated_scan's arguments and gradients.
template <auto kernel, auto meta, auto gradient>
void define_scan(torch::Library& library, const std::string& name) {
  define_operator(library,
                  concat(name,
                         "(Tensor q, Tensor k, Tensor v, Tensor? g=None, *, str read=\"key\", float? scale=None, "
                         "Tensor? bonus=None, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
                         "bool reverse=False) -> (Tensor o, Tensor final_state)"),
                  gathered<decltype(gated_scan), kernel>, gathered<decltype(gated_scan), meta>,
                  gathered_gradient<GivenArguments, decltype(gated_scan), gradient>,
                  {.given = "Tensor? grad_o, Tensor? grad_state, bool need_gate",
                   .inputs = {"q", "k", "v", "g", "bonus", "initial_state"},
                   .optional_work = "g"});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_scan<scan_kernel, scan_meta, backward_kernel>(m, "gated_scan");
  define_scan<scores_kernel, scores_meta, scores_backward_kernel>(m, "_gated_scores");
}

TensorTuple<2> gated_scores(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                            std::string_view read, std::optional<double> scale, const OptionalTensor& initial_state,
                            const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(gated_scan)>("cortado::_gated_scores");
  return op.call(q, k, v, g, read, scale, {}, initial_state, cu_seqlens, false);
}

TensorTuple<2> gated_scan(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                          std::string_view read, std::optional<double> scale, const OptionalTensor& bonus,
                          const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens, bool reverse) {
  static const auto op = find_operator<decltype(gated_scan)>("cortado::gated_scan");
  return op.call(q, k, v, g, read, scale, bonus, initial_state, cu_seqlens, reverse);
}

}  // namespace cortado
