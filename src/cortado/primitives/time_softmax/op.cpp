// time_softmax as an operator: checks, shapes, autograd, and the choice of the implementation.
#include "cortado/primitives/time_softmax/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/elementwise_scan/on_gpu.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/time_softmax/kernel.h"
#include "cortado/primitives/time_softmax/on_gpu.h"

namespace cortado {
namespace {

constexpr const char* kTimeSoftmax = "_time_softmax";

// In the order of the schema; differentiable results come first.
using SoftmaxParts = TensorTuple<6>;

Sizes check(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
            const OptionalTensor& cu_seqlens) {
  return Sizes(
      kTimeSoftmax, cu_seqlens,
      {{"theta", theta, "BTGL"}, {"initial_normalizer", normalizer, "NGL"}, {"initial_maximum", maximum, "NGL"}});
}

// Whether the CPU kernel computes this: float32 on the CPU.
bool kernel_takes(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum) {
  for (const Tensor& x : {theta, normalizer, maximum}) {
    if (x.defined() && x.scalar_type() != at::kFloat) return false;
  }
  return kernels::usable({theta, normalizer, maximum});
}

TimeSoftmax softmax_by_kernel(const Tensor& theta, const Tensor& normalizer, const Tensor& maximum,
                              const Bounds& bounds) {
  // Contiguous channels H·L; copies only if needed.
  const Tensor logits = kernels::dense_rows(theta.flatten(2));
  const Tensor alpha = kernels::plain(normalizer), peak = kernels::plain(maximum);
  softmax::SoftmaxKernel call{.rows = bounds.rows(theta.size(0)), .tokens = theta.size(1), .channels = logits.size(2)};
  call.bounds = bounds.data();
  call.theta = kernels::channels(logits);
  call.initial_maximum = kernels::numbers(peak);
  call.initial_normalizer = kernels::numbers(alpha);
  const auto room = [&] { return kernels::room(logits.sizes(), logits.options()); };
  const Tensor keys = room(), gate = room(), seen = room(), sums = room();
  const std::vector<int64_t> rows{call.rows, theta.size(2), theta.size(3)};
  const Tensor last_alpha = kernels::room(rows, logits.options()), last_m = kernels::room(rows, logits.options());
  call.keys = kernels::channels(keys);
  call.gate = kernels::channels(gate);
  call.maximum = kernels::channels(seen);
  call.normalizer = kernels::channels(sums);
  call.last_maximum = kernels::numbers(last_m);
  call.last_normalizer = kernels::numbers(last_alpha);
  run_softmax(call, kernels::parallel(kernels::kAnExponential * logits.numel()));
  const auto wide = [&](const Tensor& x) { return x.view(theta.sizes()); };
  return {wide(keys), wide(gate), wide(seen), wide(sums), last_alpha, last_m};
}

// By ATen: first the maximum, then a scan.
TimeSoftmax softmax_by_scans(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                             const OptionalTensor& bounds) {
  const auto [m, before, last_m] = running_max(theta, maximum, bounds);
  const Tensor seen = m.masked_fill(m == -kInfinity, 0);
  const Tensor gate = before - seen, keys = (theta - seen).exp();
  const OptionalTensor start = normalizer ? OptionalTensor(normalizer->flatten(1)) : std::nullopt;
  const auto [alpha, last_alpha] = elementwise_scan(gate.flatten(2), keys.flatten(2), start, bounds);
  return {
      keys,  gate, seen, alpha.view(keys.sizes()), last_alpha.view({last_alpha.size(0), theta.size(2), theta.size(3)}),
      last_m};
}

SoftmaxParts forward(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                     const OptionalTensor& cu_seqlens) {
  check(theta, normalizer, maximum, cu_seqlens);
  const Tensor start = normalizer.value_or(Tensor()), peak = maximum.value_or(Tensor());
  const Bounds bounds(kTimeSoftmax, cu_seqlens, theta.size(1));
  const TimeSoftmax p =
      choose(kTimeSoftmax, theta,
             on_cpu(
                 "kernel", [&] { return kernel_takes(theta, start, peak); },
                 [&] { return softmax_by_kernel(theta, start, peak, bounds); }),
             on_gpu(
                 "kernel", [&] { return timewise::gpu_takes({theta, start, peak}, bounds.rows(theta.size(0))); },
                 [&] { return softmax::on_gpu(theta, start, peak, bounds, cuda::machine_of(theta)); }),
             otherwise("scans", [&] { return softmax_by_scans(theta, normalizer, maximum, cu_seqlens); }));
  return {p.keys, p.normalizer, p.last_normalizer, p.gate, p.maximum, p.last_maximum};
}

SoftmaxParts forward_meta(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                          const OptionalTensor& cu_seqlens) {
  const Sizes sizes = check(theta, normalizer, maximum, cu_seqlens);
  const auto timed = [&] { return sizes.empty("BTGL", theta.options()); };
  const auto state = [&] { return sizes.empty("NGL", theta.options()); };
  return {timed(), timed(), state(), timed(), timed(), state()};
}

// α is an elementwise scan of the keys: its gradient is added to dkeys_t, and dθ = keys ⊙ dkeys.
struct BackwardArguments {
  const Tensor &grad_keys, &grad_normalizer, &grad_last_normalizer, &keys, &gate, &normalizer;
  const OptionalTensor &initial_normalizer, &cu_seqlens;
};
using BackwardSignature = TensorTuple<2>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, const OptionalTensor&, const OptionalTensor&);

TensorTuple<2> backward(const BackwardArguments& in) {
  const auto& [grad_keys, grad_normalizer, grad_last_normalizer, keys, gate, normalizer, initial_normalizer,
               cu_seqlens] = in;
  const Sizes sizes(kTimeSoftmax, cu_seqlens,
                    {{"keys", keys, "BTGL"},
                     {"gate", gate, "BTGL"},
                     {"normalizer", normalizer, "BTGL"},
                     {"grad_keys", grad_keys, "BTGL"},
                     {"grad_normalizer", grad_normalizer, "BTGL"},
                     {"initial_normalizer", initial_normalizer, "NGL"},
                     {"grad_last_normalizer", grad_last_normalizer, "NGL"}});
  static const auto scan_backward =
      find_operator<TensorTuple<3>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const OptionalTensor&, const OptionalTensor&, bool)>(
          "cortado::elementwise_scan_backward");
  const OptionalTensor start = initial_normalizer ? OptionalTensor(initial_normalizer->flatten(1)) : std::nullopt;
  const auto [gates, added, initial] =
      scan_backward.call(grad_normalizer.flatten(2), grad_last_normalizer.flatten(1), normalizer.flatten(2),
                         gate.flatten(2), keys.flatten(2), start, cu_seqlens, false);
  const Tensor theta = added.view_symint(keys.sym_sizes()).add(grad_keys).mul(keys);
  return {theta, initial_normalizer ? initial.view_symint(initial_normalizer->sym_sizes()) : initial};
}

}  // namespace

TimeSoftmax time_softmax(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                         const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(forward)>("cortado::_time_softmax");
  const auto [keys, alpha, last_alpha, gate, m, last_m] = op.call(theta, normalizer, maximum, cu_seqlens);
  return {keys, gate, m, alpha, last_alpha, last_m};
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "_time_softmax(Tensor theta, Tensor? initial_normalizer=None, Tensor? initial_maximum=None, "
                  "Tensor? cu_seqlens=None) -> (Tensor keys, Tensor normalizer, Tensor last_normalizer, Tensor gate, "
                  "Tensor maximum, Tensor last_maximum)",
                  forward, forward_meta, gathered<BackwardSignature, backward>,
                  {.given = "Tensor grad_keys, Tensor grad_normalizer, Tensor grad_last_normalizer",
                   .inputs = {"theta", "initial_normalizer"},
                   .arguments = "Tensor keys, Tensor gate, Tensor normalizer, Tensor? initial_normalizer, "
                                "Tensor? cu_seqlens"});
}

}  // namespace cortado
