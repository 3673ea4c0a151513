// latte_scan as an operator: checks, shapes, autograd, and the choice of the form.
#include "cortado/primitives/latte_scan/op.h"

#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/latte_scan/on_cpu.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado {
namespace {

constexpr const char* kLatteScan = "_latte_scan";

struct LatteArguments {
  const Tensor &query, &theta, &v;
  const LatteState& start;
  const OptionalTensor& cu_seqlens;
  bool softmax;

  at::ScalarType type() const {
    return accumulation_type({query, theta, v, start.state, start.normalizer, start.maximum});
  }
};

struct LatteSizes {
  c10::SymInt rows, state_heads, heads;
};

LatteSizes check(const LatteArguments& in) {
  expect_shape(kLatteScan, "v", in.v, {-1, -1, -1, -1});
  const c10::SymInt batch = in.v.sym_size(0), tokens = in.v.sym_size(1);
  expect_shape(kLatteScan, "key_logits", in.theta, {batch, tokens, -1, -1});
  const c10::SymInt latents = in.theta.sym_size(3);
  expect_shape(kLatteScan, "query", in.query, {batch, tokens, -1, latents});
  const c10::SymInt state_heads =
      common_heads(kLatteScan, {{"key_logits", in.theta.sym_size(2)}, {"v", in.v.sym_size(2)}});
  const LatteSizes sizes{packed_rows(kLatteScan, in.cu_seqlens, batch), state_heads,
                         output_heads(kLatteScan, in.query.sym_size(2), state_heads)};
  if (in.start.state) {
    expect_shape(kLatteScan, "state", *in.start.state, {sizes.rows, state_heads, latents, in.v.sym_size(3)});
  }
  const std::pair<const char*, OptionalTensor> sums[] = {{"normalizer", in.start.normalizer},
                                                         {"maximum", in.start.maximum}};
  for (const auto& [name, x] : sums) {
    if (x) expect_shape(kLatteScan, name, *x, {sizes.rows, state_heads, latents});
  }
  return sizes;
}

// --- As a time_softmax and a gated_scan. ---

// What the state is read with, reads = p / α (0 where α is), and what that was made of, with the output's heads.
struct Reads {
  TimeSoftmax keys;
  Tensor p, inverse, reads;
};

Reads make_reads(const LatteArguments& in, const LatteSizes& sizes) {
  const auto type = in.type();
  const auto wide = [&](const OptionalTensor& x) { return x ? OptionalTensor(x->to(type)) : x; };
  Reads made;
  made.keys = time_softmax(expand_heads(in.theta.to(type), sizes.state_heads), wide(in.start.normalizer),
                           wide(in.start.maximum), in.cu_seqlens);
  made.p = in.softmax ? at::softmax(in.query.to(type), -1) : in.query.to(type);
  const Tensor alpha = expand_heads(made.keys.normalizer, sizes.heads), nothing = alpha == 0;
  made.inverse = alpha.masked_fill(nothing, 1).reciprocal_().masked_fill_(nothing, 0);
  made.reads = expand_heads(made.p, sizes.heads) * made.inverse;
  return made;
}

LatteResult latte_by_scans(const LatteArguments& in, const LatteSizes& sizes) {
  const Reads made = make_reads(in, sizes);
  const auto [o, state] = gated_scan(made.reads, made.keys.keys, in.v.to(in.type()), made.keys.gate, "key", 1.0, {},
                                     in.start.state, in.cu_seqlens);
  return {o.to(in.v.scalar_type()), state, made.keys.last_normalizer, made.keys.last_maximum};
}

// --- By the kernel. ---

Bounds bounds_of(const LatteArguments& in) { return {kLatteScan, in.cu_seqlens, in.v.size(1)}; }

latent::Arguments plain_arguments(const LatteArguments& in, const Bounds& bounds) {
  return {in.query, in.theta, in.v, in.start, bounds.get(), in.softmax};
}

// --- The operator and its gradient. ---

using LatteOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor>;

LatteOutputs forward(const Tensor& query, const Tensor& theta, const Tensor& v, bool softmax,
                     const OptionalTensor& state, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                     const OptionalTensor& cu_seqlens) {
  const NoAutocast as_given;
  const LatteState start{state, normalizer, maximum};
  const LatteArguments in{query, theta, v, start, cu_seqlens, softmax};
  const LatteSizes sizes = check(in);
  const Bounds bounds = bounds_of(in);
  const latent::Arguments plain = plain_arguments(in, bounds);
  const LatteResult out =
      latent::kernel_takes(in.type(), plain) ? latent::latte_by_kernel(plain) : latte_by_scans(in, sizes);
  return {out.o, out.state, out.normalizer, out.maximum};
}

LatteOutputs forward_meta(const Tensor& query, const Tensor& theta, const Tensor& v, bool softmax,
                          const OptionalTensor& state, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                          const OptionalTensor& cu_seqlens) {
  const LatteState start{state, normalizer, maximum};
  const LatteArguments in{query, theta, v, start, cu_seqlens, softmax};
  const LatteSizes sizes = check(in);
  const auto options = v.options().dtype(in.type());
  const c10::SymInt latents = theta.sym_size(3), values = v.sym_size(3);
  return {at::empty_symint({v.sym_size(0), v.sym_size(1), sizes.heads, values}, v.options()),
          at::empty_symint({sizes.rows, sizes.state_heads, latents, values}, options),
          at::empty_symint({sizes.rows, sizes.state_heads, latents}, options),
          at::empty_symint({sizes.rows, sizes.state_heads, latents}, options)};
}

using LatteGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // of query, key_logits, v, and two states

LatteGradients backward_by_scans(const LatteArguments& in, const LatteSizes& sizes, const OptionalTensor& grad_o,
                                 const OptionalTensor& grad_state, const Tensor& grad_normalizer) {
  const auto type = in.type();
  const auto& [state, normalizer, maximum] = in.start;
  const Reads made = make_reads(in, sizes);
  const TimeSoftmax& keys = made.keys;
  static const auto scan_backward = find_operator<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
      const OptionalTensor&, const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, std::string_view, std::optional<double>,
      bool, bool)>("cortado::gated_scan_backward");
  static const auto softmax_backward = find_operator<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
      const OptionalTensor&)>("cortado::_time_softmax_backward");
  const auto [dreads, dkeys, dv, dgate, dbonus, dstate] = scan_backward.call(
      grad_o, grad_state, made.reads, keys.keys, in.v, keys.gate, {}, state, in.cu_seqlens, "key", 1.0, false, false);
  const Tensor dweights = dreads * made.inverse;
  const Tensor dalpha = sum_heads(dweights * made.reads, sizes.state_heads.expect_int()).neg_();
  const Tensor dp = sum_heads(dweights, in.query.size(2));
  const Tensor dquery = in.softmax ? made.p * (dp - (made.p * dp).sum(-1, true)) : dp;
  const OptionalTensor sums = normalizer ? OptionalTensor(normalizer->to(type)) : std::nullopt;
  const auto [dtheta, dnormalizer] = softmax_backward.call(dkeys, dalpha, grad_normalizer.to(type), keys.keys,
                                                           keys.gate, keys.normalizer, sums, in.cu_seqlens);
  return {dquery, dtheta, dv, dstate, dnormalizer};
}

LatteGradients backward_by_kernel(const latent::Arguments& in, const latent::OutputGradients& gradients) {
  const auto [query, theta, v, state, normalizer] = latent::latte_gradients_by_kernel(in, gradients);
  return {query, theta, v, state, normalizer};
}

// Nothing of the forward is kept but its arguments; keys and sums are computed again.
LatteGradients backward(const OptionalTensor& grad_o, const OptionalTensor& grad_state, const Tensor& grad_normalizer,
                        const Tensor& query, const Tensor& theta, const Tensor& v, const OptionalTensor& state,
                        const OptionalTensor& normalizer, const OptionalTensor& maximum,
                        const OptionalTensor& cu_seqlens, bool softmax) {
  const NoAutocast as_given;
  const LatteState start{state, normalizer, maximum};
  const LatteArguments in{query, theta, v, start, cu_seqlens, softmax};
  const LatteSizes sizes = check(in);
  const Bounds bounds = bounds_of(in);
  const latent::Arguments plain = plain_arguments(in, bounds);
  const latent::OutputGradients given{grad_o.value_or(Tensor()), grad_state.value_or(Tensor()), grad_normalizer};
  const auto [dquery, dtheta, dv, dstate, dnormalizer] =
      latent::kernel_takes(in.type(), plain, given) ? backward_by_kernel(plain, given)
                                                    : backward_by_scans(in, sizes, grad_o, grad_state, grad_normalizer);
  return {gradient_of(query, dquery), gradient_of(theta, dtheta), gradient_of(v, dv),
          state ? gradient_of(*state, dstate, 1) : no_gradient(query),
          normalizer ? gradient_of(*normalizer, dnormalizer, 1) : no_gradient(query)};
}

LatteGradients backward_meta(const OptionalTensor&, const OptionalTensor&, const Tensor&, const Tensor& query,
                             const Tensor& theta, const Tensor& v, const OptionalTensor& state,
                             const OptionalTensor& normalizer, const OptionalTensor&, const OptionalTensor&, bool) {
  return {gradient_meta(query, query), gradient_meta(theta, query), gradient_meta(v, query),
          gradient_meta(state, query), gradient_meta(normalizer, query)};
}

}  // namespace

LatteResult latte_scan(const Tensor& query, const Tensor& key_logits, const Tensor& v, bool softmax,
                       const LatteState& start, const OptionalTensor& cu_seqlens) {
  static const auto op = find_operator<decltype(forward)>("cortado::_latte_scan");
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
      forward, forward_meta,
      differentiable_by("cortado::_latte_scan_backward",
                        {"query", "key_logits", "v", "initial_state", "initial_normalizer"}));
  define_operator(
      m,
      "_latte_scan_backward(Tensor? grad_o, Tensor? grad_state, Tensor grad_normalizer, Tensor query, "
      "Tensor key_logits, Tensor v, Tensor? initial_state, Tensor? initial_normalizer, Tensor? initial_maximum, "
      "Tensor? cu_seqlens, bool softmax) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      backward, backward_meta, once_differentiable());
}

}  // namespace cortado
