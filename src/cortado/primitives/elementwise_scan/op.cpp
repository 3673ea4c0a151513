#include "cortado/primitives/elementwise_scan/op.h"

#include "cortado/primitives/elementwise_scan/on_cpu.h"
#include "cortado/primitives/elementwise_scan/scan.h"
#include "cortado/primitives/operator.h"

namespace cortado {
namespace {

constexpr const char* kName = "elementwise_scan";

// Float32, or float64 if any input is, complex if any is: a complex state stays complex under real gates.
at::ScalarType scan_type(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial) {
  const auto joint = at::promote_types(log_a.scalar_type(), b.scalar_type());
  return at::promote_types(initial ? at::promote_types(joint, initial->scalar_type()) : joint, at::kFloat);
}

c10::SymInt check(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial, const OptionalTensor& bounds) {
  expect_shape(kName, "b", b, {-1, -1, -1});
  expect_shape(kName, "log_a", log_a, {b.sym_size(0), b.sym_size(1), b.sym_size(2)});
  const c10::SymInt rows = packed_rows(kName, bounds, b.sym_size(0));
  if (initial) expect_shape(kName, "initial_state", *initial, {rows, b.sym_size(2)});
  return rows;
}

// The state after the last token of a dense batch, given all h.
Tensor last_state(const Tensor& h, const Tensor& initial, bool reverse) {
  if (h.size(1) == 0) return initial.defined() ? initial.clone() : at::zeros({h.size(0), h.size(2)}, h.options());
  return h.select(1, reverse ? 0 : h.size(1) - 1).clone();
}

// Dense or packed, all of one type. Returns (h, final state) in that type.
std::pair<Tensor, Tensor> run_scan(const Tensor& log_a, const Tensor& b, const Tensor& initial,
                                   const OptionalTensor& bounds, bool reverse) {
  const Bounds packed(kName, bounds, b.size(1));
  const auto* sequences = packed.get();
  if (elementwise::kernel_takes(b.scalar_type(), log_a, b)) {
    return elementwise::forward_by_kernel(log_a, b, initial, sequences, reverse);
  }
  auto dense = [reverse](const std::vector<Tensor>& timed, const std::vector<Tensor>& rows) -> PackedResult {
    const Tensor h = scan_dense(timed[0], timed[1], rows[0], reverse);
    return {{h}, {last_state(h, rows[0], reverse)}};
  };
  const PackedResult result =
      sequences ? for_each_sequence(*sequences, {log_a, b}, {initial}, dense) : dense({log_a, b}, {initial});
  return {result.timed[0], result.rows[0]};
}

std::tuple<Tensor, Tensor> forward_kernel(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial,
                                          const OptionalTensor& bounds, bool reverse) {
  const NoAutocast as_given;
  check(log_a, b, initial, bounds);
  const auto type = scan_type(log_a, b, initial);
  auto [h, last] = run_scan(log_a.to(type), b.to(type), initial ? initial->to(type) : Tensor(), bounds, reverse);
  return {h.to(at::promote_types(b.scalar_type(), h.is_complex() ? at::kComplexFloat : b.scalar_type())), last};
}

std::tuple<Tensor, Tensor> forward_meta(const Tensor& log_a, const Tensor& b, const OptionalTensor& initial,
                                        const OptionalTensor& bounds, bool) {
  const c10::SymInt rows = check(log_a, b, initial, bounds);
  const auto type = scan_type(log_a, b, initial);
  const bool complex = c10::isComplexType(type);
  const auto out = complex ? at::promote_types(b.scalar_type(), at::kComplexFloat) : b.scalar_type();
  return {at::empty_symint({b.sym_size(0), b.sym_size(1), b.sym_size(2)}, b.options().dtype(out)),
          at::empty_symint({rows, b.sym_size(2)}, b.options().dtype(type))};
}

// A gradient in its input's type: the real part where a complex computation had a real input.
Tensor to_type_of(const Tensor& gradient, const Tensor& input) {
  const bool drop = gradient.is_complex() && !input.is_complex();
  return (drop ? at::real(gradient) : gradient).to(input.scalar_type());
}

// Dense: D_t = dh_t + conj(a_{t+1}) D_{t+1} is the scan run the other way with the gates moved by one; db = D,
// dlog_a_t = D_t conj(a_t h_{t-1}), dh_0 = conj(a_1) D_1. timed: dh, log_a, h; rows: d final, h_0.
PackedResult backward_dense(const std::vector<Tensor>& timed, const std::vector<Tensor>& rows, bool reverse) {
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

std::tuple<Tensor, Tensor, Tensor> backward_kernel(const Tensor& dh, const Tensor& dfinal, const Tensor& log_a,
                                                   const Tensor& b, const Tensor& saved_h,
                                                   const OptionalTensor& initial, const OptionalTensor& bounds,
                                                   bool reverse) {
  const NoAutocast as_given;
  const auto type = scan_type(log_a, b, initial);
  const Tensor start = initial ? initial->to(type) : Tensor(), logs = log_a.to(type);
  // h was rounded on output if b is of a short type: then it is computed again.
  const Tensor h = saved_h.scalar_type() == type ? saved_h : run_scan(logs, b.to(type), start, bounds, reverse).first;
  const Bounds packed(kName, bounds, b.size(1));
  const auto* sequences = packed.get();
  if (elementwise::kernel_takes(type, logs, dh)) {
    const auto grads = elementwise::backward_by_kernel(dh, dfinal, logs, h, start, sequences, reverse);
    return {grads.log_a.to(log_a.scalar_type()), grads.b.to(b.scalar_type()),
            initial ? grads.initial.to(initial->scalar_type()) : no_gradient(b)};
  }
  auto dense = [reverse](const std::vector<Tensor>& timed, const std::vector<Tensor>& rows) {
    return backward_dense(timed, rows, reverse);
  };
  const std::vector<Tensor> timed = {dh.to(type), logs, h}, rows = {dfinal.to(type), start};
  const PackedResult result = sequences ? for_each_sequence(*sequences, timed, rows, dense) : dense(timed, rows);
  return {to_type_of(result.timed[0], log_a), to_type_of(result.timed[1], b),
          initial ? to_type_of(result.rows[0], *initial) : no_gradient(b)};
}

std::tuple<Tensor, Tensor, Tensor> backward_meta(const Tensor&, const Tensor&, const Tensor& log_a, const Tensor& b,
                                                 const Tensor&, const OptionalTensor& initial, const OptionalTensor&,
                                                 bool) {
  return {gradient_meta(log_a, b), gradient_meta(b, b), gradient_meta(initial, b)};
}

}  // namespace

std::tuple<Tensor, Tensor> elementwise_scan(const Tensor& log_a, const Tensor& b,
                                            const std::optional<Tensor>& initial_state,
                                            const std::optional<Tensor>& cu_seqlens, bool reverse) {
  static const auto op = find_operator<decltype(elementwise_scan)>("cortado::elementwise_scan");
  return op.call(log_a, b, initial_state, cu_seqlens, reverse);
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  define_operator(m,
                  "elementwise_scan(Tensor log_a, Tensor b, *, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
                  "bool reverse=False) -> (Tensor h, Tensor final_state)",
                  forward_kernel, forward_meta,
                  differentiable_by("cortado::elementwise_scan_backward", {"log_a", "b", "initial_state"}));
  define_operator(m,
                  "elementwise_scan_backward(Tensor grad_h, Tensor grad_final_state, Tensor log_a, Tensor b, Tensor h, "
                  "Tensor? initial_state, Tensor? cu_seqlens, bool reverse) -> (Tensor, Tensor, Tensor)",
                  backward_kernel, backward_meta, once_differentiable());
}

}  // namespace cortado
