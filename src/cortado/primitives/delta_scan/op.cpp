// delta_scan as an operator: checks, shapes, autograd. Computed as the gated scan's form with beta.
#include "cortado/primitives/delta_scan/op.h"

#include "cortado/primitives/gated_scan/scan.h"

namespace cortado {
namespace {

constexpr const char* kName = "delta_scan";

// In the order of the schema.
struct Arguments {
  const Tensor &q, &k, &v, &beta;
  const OptionalTensor& g;
  std::optional<double> scale;
  const OptionalTensor &initial_state, &cu_seqlens;

  at::ScalarType type() const { return accumulation_type({q, k, v, beta, g, initial_state}); }
  double factor() const { return scale.value_or(1 / std::sqrt(static_cast<double>(k.size(3)))); }
};

Sizes check(const Arguments& in) {
  return Sizes(kName, in.cu_seqlens,
               {{"k", in.k, "BThK"},
                {"q", in.q, "BTqK"},
                {"v", in.v, "BThV"},
                {"beta", in.beta, "BTh"},
                {"g", in.g, gated::gate_shape(in.g)},
                {"initial_state", in.initial_state, "NSKV"}});
}

TensorTuple<2> scan_meta(const Arguments& in) { return gated::outputs_meta(check(in), true, in.v, in.type()); }

gated::ScanCall call_of(const Arguments& in) {
  const Sizes sizes = check(in);  // before factor(), which reads sizes
  return {.name = kName,
          .q = in.q,
          .k = in.k,
          .v = in.v,
          .factor = in.factor(),
          .type = in.type(),
          .heads = sizes.number('H'),
          .state_heads = sizes.number('S'),
          .initial_state = in.initial_state,
          .cu_seqlens = in.cu_seqlens,
          .g = gated::timed_gate(in.g, in.k.size(1)),
          .beta = in.beta};
}

TensorTuple<2> scan_kernel(const Arguments& in) { return gated::forward(call_of(in)); }

// The gradient operator's arguments that the scan does not have.
struct Given {
  const OptionalTensor &grad_o, &grad_state;
  bool need_gate;
};

// Returns the gradients of q, k, v, beta, g and initial_state.
TensorTuple<6> backward_kernel(const Given& given, const Arguments& in) {
  const bool want_gate = in.g && given.need_gate;
  check(in).expect({{"grad_o", given.grad_o, "BTHV"}, {"grad_state", given.grad_state, "NSKV"}});
  const auto out = gated::backward(call_of(in), given.grad_o, given.grad_state, want_gate);
  return {gradient_of(in.q, out.q),
          gradient_of(in.k, out.k),
          gradient_of(in.v, out.v),
          gradient_of(in.beta, out.beta),
          want_gate ? gated::gate_gradient(out.g, *in.g) : no_gradient(in.q),
          in.initial_state ? gradient_of(*in.initial_state, out.initial_state, 1) : no_gradient(in.q)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "delta_scan(Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? g=None, *, float? scale=None, "
                  "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor final_state)",
                  gathered<decltype(delta_scan), scan_kernel>, gathered<decltype(delta_scan), scan_meta>,
                  gathered_gradient<void(const OptionalTensor&, const OptionalTensor&, bool), decltype(delta_scan),
                                    backward_kernel>,
                  {.given = "Tensor? grad_o, Tensor? grad_state, bool need_gate",
                   .inputs = {"q", "k", "v", "beta", "g", "initial_state"},
                   .optional_work = "g"});
}

TensorTuple<2> delta_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                          const OptionalTensor& g, std::optional<double> scale, const OptionalTensor& initial_state,
                          const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(delta_scan)>("cortado::delta_scan");
  return op.call(q, k, v, beta, g, scale, initial_state, cu_seqlens);
}

}  // namespace cortado
