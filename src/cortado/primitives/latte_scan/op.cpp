// latte_scan as an operator: checks, shapes, autograd, and the choice of the implementation.
#include "cortado/primitives/latte_scan/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/latte_scan/kernel.h"
#include "cortado/primitives/latte_scan/on_gpu.h"
#include "cortado/primitives/latte_scan/step_on_gpu.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado {
namespace {

constexpr const char* kLatteScan = "_latte_scan";

using LatteOutputs = TensorTuple<4>;
using LatteSignature = LatteOutputs(const Tensor&, const Tensor&, const Tensor&, bool, const OptionalTensor&,
                                    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&);

// In the order of the schema.
struct LatteArguments {
  const Tensor &query, &theta, &v;
  bool softmax;
  const OptionalTensor &state, &normalizer, &maximum, &cu_seqlens;

  at::ScalarType type() const { return accumulation_type({query, theta, v, state, normalizer, maximum}); }
};

Sizes check(const LatteArguments& in) {
  return Sizes(kLatteScan, in.cu_seqlens,
               {{"v", in.v, "BThV"},
                {"key_logits", in.theta, "BThL"},
                {"query", in.query, "BTqL"},
                {"state", in.state, "NSLV"},
                {"normalizer", in.normalizer, "NSL"},
                {"maximum", in.maximum, "NSL"}});
}

// --- By time_softmax and gated_scan. ---

// The weights that read the state, reads = p / α (0 where α is 0), and their intermediate results, with the output's
// heads.
struct Reads {
  TimeSoftmax keys;
  Tensor p, inverse, reads;
};

Reads make_reads(const LatteArguments& in, const Sizes& sizes) {
  const auto type = in.type();
  const auto wide = [&](const OptionalTensor& x) { return x ? OptionalTensor(x->to(type)) : x; };
  Reads made;
  made.keys =
      time_softmax(expand_heads(in.theta.to(type), sizes['S']), wide(in.normalizer), wide(in.maximum), in.cu_seqlens);
  made.p = in.softmax ? at::softmax(in.query.to(type), -1) : in.query.to(type);
  const Tensor alpha = expand_heads(made.keys.normalizer, sizes['H']), nothing = alpha == 0;
  made.inverse = alpha.masked_fill(nothing, 1).reciprocal_().masked_fill_(nothing, 0);
  made.reads = expand_heads(made.p, sizes['H']) * made.inverse;
  return made;
}

// The type of the scan's operands; reads and keys are in [0, 1].
at::ScalarType operands(const LatteArguments& in) {
  return gated::operand_type(in.v, {in.theta.size(3), in.v.size(3)}, in.type());
}

LatteResult latte_by_scans(const LatteArguments& in, const Sizes& sizes) {
  const Reads made = make_reads(in, sizes);
  const auto type = operands(in);
  const auto [o, state] = gated_scan(made.reads.to(type), made.keys.keys.to(type), in.v.to(type), made.keys.gate, "key",
                                     1.0, {}, in.state, in.cu_seqlens);
  return {o.to(in.v.scalar_type()), state, made.keys.last_normalizer, made.keys.last_maximum};
}

// --- By the CPU kernel. ---

// Undefined: 0.
struct OutputGradients {
  Tensor o, state, normalizer;
};
// With all output heads; in the argument's type if it has all of them, else in float32.
using LatteGradients = TensorTuple<5>;  // of query, key_logits, v, and two states

// A kernel call's inputs, and the tensors that own the data it points to.
struct KernelInputs {
  Tensor state, normalizer, maximum;
  latent::LatteKernel call;

  KernelInputs(const LatteArguments& in, const Sizes& sizes, const Bounds& bounds)
      : state(kernels::plain(in.state.value_or(Tensor()))),
        normalizer(kernels::plain(in.normalizer.value_or(Tensor()))),
        maximum(kernels::plain(in.maximum.value_or(Tensor()))) {
    const int64_t heads = sizes.number('H');
    call = {.rows = bounds.rows(in.v.size(0)),
            .tokens = in.v.size(1),
            .heads = heads,
            .latents = in.theta.size(3),
            .values = in.v.size(3)};
    call.bounds = bounds.data();
    call.softmax = in.softmax;
    call.query = kernels::timed(in.query, heads);
    call.theta = kernels::timed(in.theta, heads);
    call.v = kernels::timed(in.v, heads);
    call.state = kernels::states(state, heads);
    call.normalizer = kernels::states(normalizer, heads);
    call.maximum = kernels::states(maximum, heads);
  }
};

// Whether the CPU kernel computes this: float32 sums, plain CPU tensors.
bool kernel_takes(const LatteArguments& in, const OutputGradients& gradients = {}) {
  const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
  return in.type() == at::kFloat &&
         kernels::usable({in.query, in.theta, in.v, given(in.state), given(in.normalizer), given(in.maximum),
                          gradients.o, gradients.state, gradients.normalizer});
}

LatteResult latte_by_kernel(const LatteArguments& in, const Sizes& sizes, const Bounds& bounds) {
  KernelInputs inputs(in, sizes, bounds);
  latent::LatteKernel& call = inputs.call;
  const int64_t heads = call.heads, state_heads = sizes.number('S');
  const auto floats = in.v.options().dtype(at::kFloat);
  const LatteResult out{kernels::room({in.v.size(0), call.tokens, heads, call.values}, in.v.options()),
                        kernels::room({call.rows, state_heads, call.latents, call.values}, floats),
                        kernels::room({call.rows, state_heads, call.latents}, floats),
                        kernels::room({call.rows, state_heads, call.latents}, floats)};
  call.o = kernels::timed(out.o, heads);
  call.last_state = kernels::states(out.state, heads);
  call.last_normalizer = kernels::states(out.normalizer, heads);
  call.last_maximum = kernels::states(out.maximum, heads);
  run_latte(call, kernels::parallel(in.v.size(0) * call.tokens * heads * call.latents * call.values));
  return out;
}

LatteGradients backward_by_kernel(const LatteArguments& in, const Sizes& sizes, const Bounds& bounds,
                                  const OutputGradients& gradients) {
  const KernelInputs inputs(in, sizes, bounds);
  const latent::LatteKernel& call = inputs.call;
  const int64_t heads = call.heads;
  const Tensor state = kernels::plain(gradients.state), normalizer = kernels::plain(gradients.normalizer);
  const auto floats = in.v.options().dtype(at::kFloat);
  const auto like = [&](const Tensor& x) {
    return kernels::room({x.size(0), x.size(1), heads, x.size(3)}, x.size(2) == heads ? x.options() : floats);
  };
  const Tensor query = like(in.query), theta = like(in.theta), v = like(in.v);
  Tensor initial_state, initial_normalizer;
  if (in.state) initial_state = kernels::room({call.rows, heads, call.latents, call.values}, floats);
  if (in.normalizer) initial_normalizer = kernels::room({call.rows, heads, call.latents}, floats);
  run_latte_backward(call,
                     {.o = kernels::timed(gradients.o, heads),
                      .state = kernels::states(state, heads),
                      .normalizer = kernels::states(normalizer, heads),
                      .query = kernels::timed(query, heads),
                      .theta = kernels::timed(theta, heads),
                      .v = kernels::timed(v, heads),
                      .initial_state = kernels::states(initial_state, heads),
                      .initial_normalizer = kernels::states(initial_normalizer, heads)},
                     kernels::parallel());
  return {query, theta, v, initial_state, initial_normalizer};
}

// --- By GPU kernels. ---

latent::GpuLatteInputs gpu_inputs(const LatteArguments& in, const Bounds& bounds) {
  const auto given = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
  return {in.query, in.theta, in.v, given(in.state), given(in.normalizer), given(in.maximum), in.softmax, bounds.get()};
}

LatteGradients backward_on_gpu(const latent::GpuLatteInputs& in, const OutputGradients& gradients) {
  const auto found = latent::differentiate_on_gpu(in, {{}, {}, gradients.o, gradients.state, gradients.normalizer},
                                                  cuda::machine_of(in.v));
  return {found.query, found.theta, found.v, found.state, found.normalizer};
}

// --- The operator and its gradient. ---

LatteOutputs forward(const LatteArguments& in) {
  const NoAutocast as_given;
  const Sizes sizes = check(in);
  const Bounds bounds(kLatteScan, in.cu_seqlens, in.v.size(1));
  const LatteResult out =
      choose(kLatteScan, in.v,
             on_cpu(
                 "kernel", [&] { return kernel_takes(in); }, [&] { return latte_by_kernel(in, sizes, bounds); }),
             on_gpu(
                 "kernel of one token", [&] { return latent::gpu_takes_step(gpu_inputs(in, bounds)); },
                 [&] { return latent::step_on_gpu(gpu_inputs(in, bounds), cuda::machine_of(in.v)); }),
             on_gpu(
                 "kernel", [&] { return latent::gpu_takes(gpu_inputs(in, bounds)); },
                 [&] { return latent::read_on_gpu(gpu_inputs(in, bounds), cuda::machine_of(in.v)); }),
             otherwise("time_softmax, gated_scan", [&] { return latte_by_scans(in, sizes); }));
  return {out.o, out.state, out.normalizer, out.maximum};
}

LatteOutputs forward_meta(const LatteArguments& in) {
  const Sizes sizes = check(in);
  const auto options = in.v.options().dtype(in.type());
  return {sizes.empty("BTHV", in.v.options()), sizes.empty("NSLV", options), sizes.empty("NSL", options),
          sizes.empty("NSL", options)};
}

// The gradient operator's arguments that the scan does not have.
struct Given {
  const OptionalTensor &grad_o, &grad_state;
  const Tensor& grad_normalizer;
};

LatteGradients backward_by_scans(const LatteArguments& in, const Sizes& sizes, const Given& given) {
  const auto& [grad_o, grad_state, grad_normalizer] = given;
  const auto type = in.type();
  const Reads made = make_reads(in, sizes);
  const TimeSoftmax& keys = made.keys;
  static const auto scan_backward =
      find_operator<TensorTuple<6>(const OptionalTensor&, const OptionalTensor&, bool, const Tensor&, const Tensor&,
                                   const Tensor&, const OptionalTensor&, std::string_view, std::optional<double>,
                                   const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool)>(
          "cortado::gated_scan_backward");
  static const auto softmax_backward =
      find_operator<TensorTuple<2>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const OptionalTensor&, const OptionalTensor&)>(
          "cortado::_time_softmax_backward");
  const auto [dreads, dkeys, dv, dgate, dbonus, dstate] =
      scan_backward.call(grad_o, grad_state, false, made.reads.to(operands(in)), keys.keys.to(operands(in)), in.v,
                         keys.gate, "key", 1.0, {}, in.state, in.cu_seqlens, false);
  const Tensor dweights = dreads * made.inverse;
  const Tensor dalpha = sum_heads(dweights * made.reads, sizes.number('S')).neg_();
  const Tensor dp = sum_heads(dweights, in.query.size(2));
  const Tensor dquery = in.softmax ? made.p * (dp - (made.p * dp).sum(-1, true)) : dp;
  const OptionalTensor sums = in.normalizer ? OptionalTensor(in.normalizer->to(type)) : std::nullopt;
  const auto [dtheta, dnormalizer] = softmax_backward.call(dkeys, dalpha, grad_normalizer.to(type), keys.keys,
                                                           keys.gate, keys.normalizer, sums, in.cu_seqlens);
  return {dquery, dtheta, dv, dstate, dnormalizer};
}

// The forward saves only its arguments; keys and sums are recomputed.
LatteGradients backward(const Given& given, const LatteArguments& in) {
  const NoAutocast as_given;
  Sizes sizes = check(in);
  sizes.expect({{"grad_o", given.grad_o, "BTHV"},
                {"grad_state", given.grad_state, "NSLV"},
                {"grad_normalizer", given.grad_normalizer, "NSL"}});
  const OutputGradients gradients{given.grad_o.value_or(Tensor()), given.grad_state.value_or(Tensor()),
                                  given.grad_normalizer};
  const Bounds bounds(kLatteScan, in.cu_seqlens, in.v.size(1));
  const auto [dquery, dtheta, dv, dstate, dnormalizer] =
      choose("_latte_scan_backward", in.v,
             on_cpu(
                 "kernel", [&] { return kernel_takes(in, gradients); },
                 [&] { return backward_by_kernel(in, sizes, bounds, gradients); }),
             on_gpu(
                 "kernel", [&] { return latent::gpu_takes(gpu_inputs(in, bounds)); },
                 [&] { return backward_on_gpu(gpu_inputs(in, bounds), gradients); }),
             otherwise("time_softmax, gated_scan", [&] { return backward_by_scans(in, sizes, given); }));
  return {gradient_of(in.query, dquery), gradient_of(in.theta, dtheta), gradient_of(in.v, dv),
          in.state ? gradient_of(*in.state, dstate, 1) : no_gradient(in.query),
          in.normalizer ? gradient_of(*in.normalizer, dnormalizer, 1) : no_gradient(in.query)};
}

}  // namespace

LatteResult latte_scan(const Tensor& query, const Tensor& key_logits, const Tensor& v, bool softmax,
                       const LatteState& start, const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<LatteSignature>("cortado::_latte_scan");
  const auto [o, state, normalizer, maximum] =
      op.call(query, key_logits, v, softmax, start.state, start.normalizer, start.maximum, cu_seqlens);
  return {o, state, normalizer, maximum};
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(
      m,
      "_latte_scan(Tensor query, Tensor key_logits, Tensor v, bool softmax, Tensor? initial_state=None, "
      "Tensor? initial_normalizer=None, Tensor? initial_maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, "
      "Tensor state, Tensor normalizer, Tensor maximum)",
      gathered<LatteSignature, forward>, gathered<LatteSignature, forward_meta>,
      gathered_gradient<void(const OptionalTensor&, const OptionalTensor&, const Tensor&), LatteSignature, backward>,
      {.given = "Tensor? grad_o, Tensor? grad_state, Tensor grad_normalizer",
       .inputs = {"query", "key_logits", "v", "initial_state", "initial_normalizer"}});
}

}  // namespace cortado
