// elementwise_scan and _running_max as operators: checks, shapes, autograd, and the choice of the implementation.
#include "cortado/primitives/elementwise_scan/op.h"

#include "cortado/primitives/choice.h"
#include "cortado/primitives/elementwise_scan/kernel.h"
#include "cortado/primitives/elementwise_scan/on_gpu.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/operator.h"

namespace cortado {
namespace {

constexpr const char* kName = "elementwise_scan";

// Float32, or float64 if any input is, complex if any is: a complex state stays complex under real gates.
at::ScalarType scan_type(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial) {
  const auto joint = at::promote_types(log_a.scalar_type(), b.scalar_type());
  return at::promote_types(initial ? at::promote_types(joint, initial->scalar_type()) : joint, at::kFloat);
}

Sizes check(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial, const OptionalTensor& cu_seqlens) {
  return Sizes(kName, cu_seqlens, {{"b", b, "BTD"}, {"log_a", log_a, "BTD"}, {"initial_state", initial, "ND"}},
               Types::kComplexToo);
}

// --- By the CPU kernel, in float32. ---

bool kernel_takes(at::ScalarType type, const Tensor& log_a, const Tensor& b) {
  return type == at::kFloat && kernels::usable({log_a, b});
}

// float32 with contiguous channels; copies only if needed.
Tensor side_by_side(const Tensor& x) { return kernels::dense_rows(x.to(at::kFloat).resolve_conj()); }

Tensor room_like(const Tensor& x) { return kernels::room(x.sizes(), x.options().dtype(at::kFloat)); }

// The call points into its arguments, which must outlive it.
elementwise::ScanKernel kernel_call(const Tensor& log_a, const Tensor& initial, const Bounds& bounds, bool reverse) {
  elementwise::ScanKernel call{};
  call.rows = bounds.rows(log_a.size(0));
  call.tokens = log_a.size(1);
  call.channels = log_a.size(2);
  call.bounds = bounds.data();
  call.reverse = reverse;
  call.log_a = kernels::channels(log_a);
  call.initial = kernels::numbers(initial);
  return call;
}

// Returns (h, final state).
std::pair<Tensor, Tensor> forward_by_kernel(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                            const Bounds& bounds, bool reverse) {
  const Tensor logs = side_by_side(log_a), adds = side_by_side(b), start = kernels::plain(initial), h = room_like(b);
  elementwise::ScanKernel call = kernel_call(logs, start, bounds, reverse);
  const Tensor last = kernels::room({call.rows, call.channels}, h.options());
  call.b = kernels::channels(adds);
  call.h = kernels::channels(h);
  call.final_state = kernels::numbers(last);
  run_forward(call, kernels::parallel(kernels::kAnExponential * adds.numel()));
  return {h, last};
}

using Gradients = TensorTuple<3>;  // of log_a, b and the initial state

Gradients backward_by_kernel(const Tensor& grad_h, const Tensor& grad_final, const Tensor& log_a, const Tensor& h,
                             const Tensor& initial, const Bounds& bounds, bool reverse) {
  const Tensor logs = side_by_side(log_a), grads = side_by_side(grad_h), outputs = side_by_side(h);
  const Tensor start = kernels::plain(initial), last = kernels::plain(grad_final);
  elementwise::ScanKernel call = kernel_call(logs, start, bounds, reverse);
  const Tensor grad_log_a = room_like(log_a), grad_b = room_like(log_a);
  const Tensor grad_initial = kernels::room({call.rows, call.channels}, logs.options());
  call.h = kernels::channels(outputs);
  call.grad_h = kernels::channels(grads);
  call.grad_final = kernels::numbers(last);
  call.grad_log_a = kernels::channels(grad_log_a);
  call.grad_b = kernels::channels(grad_b);
  call.grad_initial = kernels::numbers(grad_initial);
  run_backward(call, kernels::parallel());
  return {grad_log_a, grad_b, grad_initial};
}

// --- By ATen, on dense batches. ---

// Time cut into `count` chunks of `length` tokens. One loop over the positions in a chunk works on all chunks at once;
// a second loop carries the chunks' final states. This takes about 2·√T short steps instead of T.
struct Chunks {
  int64_t length, count;
  explicit Chunks(int64_t tokens) {
    length = std::max<int64_t>(1, std::llround(std::sqrt(static_cast<double>(tokens))));
    count = (tokens + length - 1) / length;
  }
  // [B,T,D] -> [B,count,length,D], padded at the end with `fill`.
  Tensor split(const Tensor& x, double fill) const {
    const int64_t missing = count * length - x.size(1);
    const Tensor whole = missing == 0 ? x.contiguous() : at::constant_pad_nd(x, {0, 0, 0, missing}, fill);
    return whole.view({x.size(0), count, length, x.size(2)});
  }
  Tensor join(const Tensor& x, int64_t tokens) const { return x.flatten(1, 2).narrow(1, 0, tokens); }
};

// h_t = exp(log_a_t) ⊙ h_{t-1} + b_t over dim 1 of [B,T,D] tensors of one type; h_0 = `initial` [B,D], or zero if
// undefined. `reverse` runs from the last token to the first. Memory is O(T).
Tensor scan_dense(const Tensor& log_a, const Tensor& b, const Tensor& initial, bool reverse) {
  const int64_t tokens = b.size(1);
  if (tokens == 0) return b.clone();
  if (tokens == 1) return initial.defined() ? at::addcmul(b, log_a.exp(), initial.unsqueeze(1)) : b.clone();
  const Chunks chunks(tokens);
  // Padding neither decays nor adds, so the carried state passes it unchanged in either direction.
  const Tensor logs = chunks.split(log_a, 0.0), adds = chunks.split(b, 0.0), factors = logs.exp();
  Tensor h = at::empty_like(adds), decay = at::empty_like(logs);
  auto at_step = [&](int64_t i, int64_t steps) { return reverse ? steps - 1 - i : i; };

  // Scans within the chunks, from zero. `decay` is the sum of logs since the chunk's start, so that the carried state
  // is rounded once per chunk instead of once per token.
  Tensor last, last_decay;
  for (int64_t i = 0; i < chunks.length; ++i) {
    const int64_t t = at_step(i, chunks.length);
    Tensor now = h.select(2, t), now_decay = decay.select(2, t);
    if (i == 0) {
      now.copy_(adds.select(2, t));
      now_decay.copy_(logs.select(2, t));
    } else {
      at::addcmul_out(now, adds.select(2, t), factors.select(2, t), last);
      at::add_out(now_decay, last_decay, logs.select(2, t));
    }
    last = now;
    last_decay = now_decay;
  }
  decay.exp_();

  // Carries from chunk to chunk: carry[n] is the state that enters chunk n.
  Tensor carry = at::zeros_like(last);
  Tensor state = initial.defined() ? initial : at::zeros_like(last.select(1, 0));
  const int64_t end = at_step(chunks.length - 1, chunks.length);
  for (int64_t i = 0; i < chunks.count; ++i) {
    const int64_t n = at_step(i, chunks.count);
    carry.select(1, n).copy_(state);
    state = at::addcmul(h.select(1, n).select(1, end), decay.select(1, n).select(1, end), state);
  }
  h.addcmul_(decay, carry.unsqueeze(2));
  return chunks.join(h, tokens);
}

// --- Common to both. ---

// Returns the state after the last token of a dense batch, given all h.
Tensor last_state(const Tensor& h, const Tensor& initial, bool reverse) {
  if (h.size(1) == 0) return initial.defined() ? initial.clone() : at::zeros({h.size(0), h.size(2)}, h.options());
  return h.select(1, reverse ? 0 : h.size(1) - 1).clone();
}

// Dense or packed, all of one type. Returns (h, final state) in that type.
std::pair<Tensor, Tensor> run_scan(const Tensor& log_a, const Tensor& b, const Tensor& initial, const Bounds& bounds,
                                   bool reverse) {
  const auto by_aten = [&]() -> std::pair<Tensor, Tensor> {
    const auto dense = [reverse](const Tensors& timed, const Tensors& rows) -> PackedResult {
      const Tensor h = scan_dense(timed[0], timed[1], rows[0], reverse);
      return {{h}, {last_state(h, rows[0], reverse)}};
    };
    const PackedResult result = bounds.run({log_a, b}, {initial}, dense);
    return {result.timed[0], result.rows[0]};
  };
  return choose(
      kName, b,
      on_cpu(
          "kernel", [&] { return kernel_takes(b.scalar_type(), log_a, b); },
          [&] { return forward_by_kernel(log_a, b, initial, bounds, reverse); }),
      on_gpu(
          "kernel", [&] { return timewise::gpu_takes({log_a, b, initial}, bounds.rows(b.size(0))); },
          [&] { return elementwise::forward_on_gpu(log_a, b, initial, bounds, reverse, cuda::machine_of(b)); }),
      otherwise("ATen", by_aten));
}

TensorTuple<2> forward_kernel(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial,
                              const OptionalTensor& bounds, bool reverse) {
  const NoAutocast as_given;
  check(log_a, b, initial, bounds);
  const auto type = scan_type(log_a, b, initial);
  const Tensor start = initial ? initial->to(type) : Tensor();
  auto [h, last] = run_scan(log_a.to(type), b.to(type), start, {kName, bounds, b.size(1)}, reverse);
  return {h.to(at::promote_types(b.scalar_type(), h.is_complex() ? at::kComplexFloat : b.scalar_type())), last};
}

TensorTuple<2> scan_meta(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial,
                         const OptionalTensor& bounds, bool) {
  const Sizes sizes = check(log_a, b, initial, bounds);
  const auto type = scan_type(log_a, b, initial);
  const bool complex = c10::isComplexType(type);
  const auto out = complex ? at::promote_types(b.scalar_type(), at::kComplexFloat) : b.scalar_type();
  return {sizes.empty("BTD", b.options().dtype(out)), sizes.empty("ND", b.options().dtype(type))};
}

// Converts a gradient to its input's type: the real part if the computation was complex and the input real.
Tensor to_type_of(const Tensor& gradient, const Tensor& input) {
  const bool drop = gradient.is_complex() && !input.is_complex();
  return (drop ? at::real(gradient) : gradient).to(input.scalar_type());
}

// Dense backward: D_t = dh_t + conj(a_{t+1}) D_{t+1} is the scan in the other direction with the gates shifted by one
// token; db = D, dlog_a_t = D_t conj(a_t h_{t-1}), dh_0 = conj(a_1) D_1. timed: dh, log_a, h; rows: d final, h_0.
PackedResult backward_dense(const Tensors& timed, const Tensors& rows, bool reverse) {
  const Tensor &dh = timed[0], &log_a = timed[1], &h = timed[2], &dfinal = rows[0], &initial = rows[1];
  const int64_t tokens = h.size(1);
  if (tokens == 0) return {{h.clone(), h.clone()}, {dfinal.clone()}};
  const Tensor zero_gate = at::zeros_like(log_a.narrow(1, 0, 1));
  const Tensor first = initial.defined() ? initial.unsqueeze(1) : at::zeros_like(h.narrow(1, 0, 1));
  const Tensor gates = log_a.conj().resolve_conj();
  const Tensor later = reverse ? at::cat({zero_gate, gates.narrow(1, 0, tokens - 1)}, 1)
                               : at::cat({gates.narrow(1, 1, tokens - 1), zero_gate}, 1);
  const Tensor before =
      reverse ? at::cat({h.narrow(1, 1, tokens - 1), first}, 1) : at::cat({first, h.narrow(1, 0, tokens - 1)}, 1);
  const Tensor d = scan_dense(later, dh, dfinal, !reverse);
  const Tensor factors = gates.exp();
  const int64_t start = reverse ? tokens - 1 : 0;
  return {{d * factors * before.conj(), d}, {factors.select(1, start) * d.select(1, start)}};
}

// Arguments of the gradient operator; h is the forward's result.
struct ScanGiven {
  const Tensor &dh, &dfinal, &h;
};
struct ScanArguments {
  const Tensor &log_a, &b;
  const OptionalTensor &initial, &cu_seqlens;
  bool reverse;
};

Gradients backward_kernel(const ScanGiven& given, const ScanArguments& in) {
  const auto& [dh, dfinal, saved_h] = given;
  const auto& [log_a, b, initial, cu_seqlens, reverse] = in;
  const NoAutocast as_given;
  check(log_a, b, initial, cu_seqlens)
      .expect({{"grad_h", dh, "BTD"}, {"grad_final_state", dfinal, "ND"}, {"h", saved_h, "BTD"}});
  const auto type = scan_type(log_a, b, initial);
  const Tensor start = initial ? initial->to(type) : Tensor(), logs = log_a.to(type);
  const Bounds bounds(kName, cu_seqlens, b.size(1));
  // A 16-bit h was rounded on output: then it is recomputed.
  const Tensor h = saved_h.scalar_type() == type ? saved_h : run_scan(logs, b.to(type), start, bounds, reverse).first;
  const auto by_aten = [&]() -> Gradients {
    const auto dense = [reverse](const Tensors& timed, const Tensors& rows) {
      return backward_dense(timed, rows, reverse);
    };
    const PackedResult result = bounds.run({dh.to(type), logs, h}, {dfinal.to(type), start}, dense);
    return {result.timed[0], result.timed[1], result.rows[0]};
  };
  const auto [grad_log_a, grad_b, grad_initial] = choose(
      "elementwise_scan_backward", h,
      on_cpu(
          "kernel", [&] { return kernel_takes(type, logs, dh); },
          [&] { return backward_by_kernel(dh, dfinal, logs, h, start, bounds, reverse); }),
      on_gpu(
          "kernel", [&] { return timewise::gpu_takes({logs, h, start}, bounds.rows(h.size(0))); },
          [&] {
            return elementwise::backward_on_gpu(dh, dfinal, {logs, h, start}, bounds, reverse, cuda::machine_of(h));
          }),
      otherwise("ATen", by_aten));
  return {to_type_of(grad_log_a, log_a), to_type_of(grad_b, b),
          initial ? to_type_of(grad_initial, *initial) : no_gradient(log_a)};
}

// --- _running_max: keeps the exponentials of Latte, ABC and (with decay) RWKV-4 at most 1. ---

using Maxima = TensorTuple<3>;

constexpr const char* kRunningMax = "_running_max";

Sizes check_maxima(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
                   const OptionalTensor& decay) {
  return Sizes(kRunningMax, cu_seqlens, {{"x", x, "BTGL"}, {"decay", decay, "GL"}, {"initial", initial, "NGL"}});
}

// m_t = max(m_{t-1} - decay, x_t) over dim 1 of [B,T,D], m_0 = `initial` [B,D]; decay [D] or undefined (0).
Tensor running_max_dense(const Tensor& x, const Tensor& initial, const Tensor& decay) {
  const int64_t tokens = x.size(1);
  if (tokens == 0) return x.clone();
  const Chunks chunks(tokens);
  Tensor m = chunks.split(x, -kInfinity).clone();
  for (int64_t i = 1; i < chunks.length; ++i) {
    Tensor now = m.select(2, i);
    const Tensor before = m.select(2, i - 1);
    at::maximum_out(now, now, decay.defined() ? before - decay : before);
  }
  Tensor lost;  // decay of the maximum at a chunk's start, for each of its tokens [length,D]
  if (decay.defined()) lost = decay * at::arange(1, chunks.length + 1, x.options()).unsqueeze(1);
  for (int64_t n = 0; n < chunks.count; ++n) {
    const Tensor state = n == 0 ? initial : m.select(1, n - 1).select(1, chunks.length - 1);
    Tensor now = m.select(1, n);
    at::maximum_out(now, now, decay.defined() ? state.unsqueeze(1) - lost : state.unsqueeze(1));
  }
  return chunks.join(m, tokens);
}

// Dense: returns (m, m one token before, m after the last token). timed: x; rows: m_0; decay [H·L] or undefined.
PackedResult dense_maxima(const Tensors& timed, const Tensors& rows, const Tensor& decay) {
  const Tensor x = timed[0].flatten(2);
  const Tensor start = rows[0].flatten(1);
  const int64_t tokens = x.size(1);
  const Tensor m = running_max_dense(x, start, decay);
  const Tensor chain = at::cat({start.unsqueeze(1), m}, 1);
  auto heads = [&](const Tensor& flat, int64_t dim) {
    return flat.unflatten(dim, {timed[0].size(2), timed[0].size(3)});
  };
  return {{heads(m, 2), heads(chain.narrow(1, 0, tokens), 2)}, {heads(chain.select(1, tokens), 1).clone()}};
}

Maxima maxima_kernel(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
                     const OptionalTensor& decay) {
  const at::NoGradGuard no_grad;
  const int64_t rows = check_maxima(x, initial, cu_seqlens, decay).number('N');
  const auto type = accumulation_type({x, initial, decay});
  const Tensor start =
      initial ? initial->to(type) : at::full({rows, x.size(2), x.size(3)}, -kInfinity, x.options().dtype(type));
  const Tensor loss = decay ? decay->to(type).flatten() : Tensor();
  const auto dense = [&loss](const Tensors& timed_parts, const Tensors& row_parts) {
    return dense_maxima(timed_parts, row_parts, loss);
  };
  const PackedResult result = Bounds(kRunningMax, cu_seqlens, x.size(1)).run({x.to(type)}, {start}, dense);
  return {result.timed[0].contiguous(), result.timed[1].contiguous(), result.rows[0]};
}

Maxima maxima_meta(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
                   const OptionalTensor& decay) {
  const Sizes sizes = check_maxima(x, initial, cu_seqlens, decay);
  const auto options = x.options().dtype(accumulation_type({x, initial, decay}));
  return {sizes.empty("BTGL", options), sizes.empty("BTGL", options), sizes.empty("NGL", options)};
}

}  // namespace

TensorTuple<2> elementwise_scan(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial_state,
                                const OptionalTensor& cu_seqlens, bool reverse) {
  static const auto op = find_operator<decltype(elementwise_scan)>("cortado::elementwise_scan");
  return op.call(log_a, b, initial_state, cu_seqlens, reverse);
}

Maxima running_max(const Tensor& x, const OptionalTensor& initial, const OptionalTensor& cu_seqlens,
                   const OptionalTensor& decay) {
  const auto detached = [](const OptionalTensor& y) { return y ? OptionalTensor(y->detach()) : y; };
  static const auto op = find_operator<decltype(maxima_kernel)>("cortado::_running_max");
  return op.call(x.detach(), detached(initial), cu_seqlens, detached(decay));
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(
      m,
      "elementwise_scan(Tensor log_a, Tensor b, *, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
      "bool reverse=False) -> (Tensor h, Tensor final_state)",
      forward_kernel, scan_meta,
      gathered_gradient<void(const Tensor&, const Tensor&, const Tensor&), decltype(elementwise_scan), backward_kernel>,
      {.given = "Tensor grad_h, Tensor grad_final_state, Tensor h", .inputs = {"log_a", "b", "initial_state"}});
  // Not differentiable: results that use a running maximum do not depend on it.
  define_operator(m,
                  "_running_max(Tensor x, Tensor? initial=None, Tensor? cu_seqlens=None, Tensor? decay=None) -> "
                  "(Tensor maximum, Tensor before, Tensor final_maximum)",
                  maxima_kernel, maxima_meta, torch::CppFunction::makeFallthrough());
}

}  // namespace cortado
