// dplr_scan as an operator: checks, shapes, autograd, and the choice of an implementation.
#include "cortado/primitives/dplr_scan/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/dplr_scan/by_aten.h"
#include "cortado/primitives/dplr_scan/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace dplr {
namespace {

constexpr const char* kName = "dplr_scan";

// In the order of the schema.
struct Arguments {
  const Tensor &q, &k, &v, &a, &b, &g;
  std::optional<double> scale;
  const OptionalTensor &initial_state, &cu_seqlens;

  at::ScalarType type() const { return accumulation_type({q, k, v, a, b, g, initial_state}); }
  // In the order of Input.
  Tensors inputs() const { return {q, k, v, a, b, g, initial_state.value_or(Tensor())}; }
};

Sizes check(const Arguments& in) {
  return Sizes(kName, in.cu_seqlens,
               {{"k", in.k, "BThK"},
                {"q", in.q, "BTqK"},
                {"v", in.v, "BThV"},
                {"a", in.a, "BThK"},
                {"b", in.b, "BThK"},
                {"g", in.g, "BThK"},
                {"initial_state", in.initial_state, "NSKV"}});
}

TensorTuple<2> scan_meta(const Arguments& in) {
  const Sizes sizes = check(in);
  return {sizes.empty("BTHV", in.v.options()), sizes.empty("NSKV", in.v.options().dtype(in.type()))};
}

Call call_of(const Arguments& in) {
  const Sizes sizes = check(in);
  const int64_t keys = sizes.number('K');
  return {.heads = sizes.number('H'),
          .state_heads = sizes.number('S'),
          .keys = keys,
          .values = sizes.number('V'),
          .factor = in.scale.value_or(1 / std::sqrt(static_cast<double>(keys))),
          .type = in.type()};
}

// The kernel has one state per head of the output.
bool kernel_takes(const Arguments& in, const Call& call) {
  return call.heads == call.state_heads && kernels::usable({in.q, in.k, in.v, in.a, in.b, in.g}) &&
         (!in.initial_state || kernels::usable({*in.initial_state}));
}

// A call of the kernel, with the tensors that it points into.
struct KernelCall {
  Tensors plain;  // in the order of Input
  ScanKernel scan;

  KernelCall(const Arguments& in, const Call& call, const Bounds& bounds) {
    for (const Tensor& x : {in.q, in.k, in.v, in.a, in.b, in.g}) {
      plain.push_back(kernels::plain(expand_heads(x, call.heads)));
    }
    plain.push_back(kernels::plain(in.initial_state.value_or(Tensor())));
    const auto numbers = [&](Input which) { return kernels::numbers(plain[which]); };
    scan = {.rows = bounds.rows(in.k.size(0)),
            .tokens = in.k.size(1),
            .heads = call.heads,
            .keys = call.keys,
            .values = call.values,
            .bounds = bounds.data(),
            .factor = static_cast<float>(call.factor),
            .q = numbers(kQuery),
            .k = numbers(kKeys),
            .v = numbers(kValues),
            .a = numbers(kReads),
            .b = numbers(kWrites),
            .g = numbers(kGates),
            .start = numbers(kState)};
  }

  Tensor states() const { return at::empty({scan.rows, scan.heads, scan.keys, scan.values}, plain[kValues].options()); }
  Tensor like(Input which) const { return kernels::room(plain[which].sizes(), plain[which].options()); }
};

Tensors by_kernel(const Arguments& in, const Call& call, const Bounds& bounds) {
  KernelCall of(in, call, bounds);
  const Tensor o = of.like(kValues), last = of.states();
  of.scan.o = kernels::numbers(o);
  of.scan.last = kernels::numbers(last);
  run_scan(of.scan, kernels::parallel(5 * call.keys * o.numel()));
  return {o, last};
}

// In the order of Input.
Tensors gradients_by_kernel(const Arguments& in, const Call& call, const Bounds& bounds, const OptionalTensor& grad_o,
                            const OptionalTensor& grad_state) {
  KernelCall of(in, call, bounds);
  const Tensor go = kernels::plain(grad_o.value_or(Tensor())), gs = kernels::plain(grad_state.value_or(Tensor()));
  of.scan.grad_o = kernels::numbers(go);
  of.scan.grad_last = kernels::numbers(gs);
  Tensors made;
  float** const places[] = {&of.scan.dq, &of.scan.dk, &of.scan.dv, &of.scan.da, &of.scan.db, &of.scan.dg};
  for (const Input which : {kQuery, kKeys, kValues, kReads, kWrites, kGates}) {
    made.push_back(of.like(which));
    *places[which] = kernels::numbers(made.back());
  }
  made.push_back(of.states());
  of.scan.dstart = kernels::numbers(made.back());
  run_gradient(of.scan, kernels::parallel());
  const Tensors given = in.inputs();
  for (size_t i = 0; i < made.size(); ++i) {
    if (given[i].defined()) made[i] = gradient_of(given[i], made[i], i == kState ? 1 : 2);
  }
  return made;
}

TensorTuple<2> scan_kernel(const Arguments& in) {
  const NoAutocast exact;
  const Call call = call_of(in);
  const Bounds bounds(kName, in.cu_seqlens, in.k.size(1));
  const Tensors made =
      choose(kName, in.k,
             on_cpu(
                 "kernel", [&] { return kernel_takes(in, call); }, [&] { return by_kernel(in, call, bounds); }),
             otherwise("ATen", [&] {
               const at::NoGradGuard no_grad;
               return by_aten(call, bounds)(in.inputs());
             }));
  return {made[0].to(in.v.scalar_type()), made[1]};
}

// The gradient operator's arguments that the scan does not have.
struct Given {
  const OptionalTensor &grad_o, &grad_state;
};

// Returns the gradients of q, k, v, a, b, g and initial_state.
TensorTuple<7> backward_kernel(const Given& given, const Arguments& in) {
  const NoAutocast exact;
  check(in).expect({{"grad_o", given.grad_o, "BTHV"}, {"grad_state", given.grad_state, "NSKV"}});
  const Call call = call_of(in);
  const Bounds bounds(kName, in.cu_seqlens, in.k.size(1));
  const auto takes = [&] {
    return kernel_takes(in, call) &&
           kernels::usable({given.grad_o.value_or(Tensor()), given.grad_state.value_or(Tensor())});
  };
  const Tensors found = choose(
      "dplr_scan backward", in.k,
      on_cpu("kernel", takes, [&] { return gradients_by_kernel(in, call, bounds, given.grad_o, given.grad_state); }),
      otherwise("ATen", [&] {
        return gradients_of(by_aten(call, bounds), in.inputs(),
                            {given.grad_o.value_or(Tensor()), given.grad_state.value_or(Tensor())});
      }));
  return {found[kQuery],
          found[kKeys],
          found[kValues],
          found[kReads],
          found[kWrites],
          found[kGates],
          in.initial_state ? found[kState] : no_gradient(in.q)};
}

}  // namespace
}  // namespace dplr

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(
      m,
      "dplr_scan(Tensor q, Tensor k, Tensor v, Tensor a, Tensor b, Tensor g, *, float? scale=None, "
      "Tensor? initial_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor final_state)",
      gathered<decltype(dplr_scan), dplr::scan_kernel>, gathered<decltype(dplr_scan), dplr::scan_meta>,
      gathered_gradient<void(const OptionalTensor&, const OptionalTensor&), decltype(dplr_scan), dplr::backward_kernel>,
      {.given = "Tensor? grad_o, Tensor? grad_state", .inputs = {"q", "k", "v", "a", "b", "g", "initial_state"}});
}

TensorTuple<2> dplr_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& a, const Tensor& b,
                         const Tensor& g, std::optional<double> scale, const OptionalTensor& initial_state,
                         const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(dplr_scan)>("cortado::dplr_scan");
  return op.call(q, k, v, a, b, g, scale, initial_state, cu_seqlens);
}

}  // namespace cortado
