#include "cortado/primitives/window_attention/on_cpu.h"

#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/window_attention/extra.h"
#include "cortado/primitives/window_attention/kernel.h"

namespace cortado::window {

namespace {

// Queries a sequence up to which it does not pay to turn the keys that they meet.
constexpr int64_t kFewestQueries = 8;

int64_t sequences(const BlockedInputs& in) { return in.visible.sequence.empty() ? 1 : in.visible.sequence.back() + 1; }

bool few_queries(const BlockedInputs& in) { return in.q.size(1) < kFewestQueries * (in.packed ? sequences(in) : 1); }

// Points into the inputs and outputs, which must outlive it.
AttentionKernel kernel_call(const BlockedInputs& in, const Tensor& first_key, const BlockedOutputs& out) {
  AttentionKernel call{};
  call.batch = in.q.size(0);
  call.queries = in.q.size(1);
  call.keys = in.k.size(1);
  call.heads = in.q.size(2);
  call.groups = in.k.size(2);
  call.key_size = in.q.size(3);
  call.value_size = in.v.size(3);
  call.q = kernels::timed(in.q, call.heads);
  call.k = kernels::timed(in.k, call.groups);
  call.v = kernels::timed(in.v, call.groups);
  call.begin = in.visible.begin.data();
  call.end = in.visible.end.data();
  if (first_key.defined()) call.first_key = first_key.data_ptr<int64_t>();
  call.scale = static_cast<float>(in.scale);
  call.softcap = static_cast<float>(in.softcap.value_or(0));
  call.o = kernels::timed(out.o, call.heads);
  call.row_max = out.row_max.data_ptr<float>();
  call.denominator = out.denominator.data_ptr<float>();
  if (out.lse.defined()) call.lse = out.lse.data_ptr<float>();
  return call;
}

Tensor first_keys(const BlockedInputs& in) { return in.first_key ? in.first_key->contiguous() : Tensor(); }

// Of one call's q, k and v alone, as the two below: an extra set is another call's.
bool takes_one(const BlockedInputs& in) {
  return kernels::usable({in.q, in.k, in.v}) && in.k.size(2) == in.v.size(2) && in.q.size(2) % in.k.size(2) == 0 &&
         (!few_queries(in) || in.q.size(1) <= kFewQueries);
}

// o in `type`.
BlockedOutputs forward_one(const BlockedInputs& in, at::ScalarType type) {
  const int64_t batch = in.q.size(0), queries = in.q.size(1), heads = in.q.size(2);
  const auto row = [&] { return kernels::room({batch, queries, heads}, in.q.options().dtype(at::kFloat)); };
  const Tensor o = kernels::room({batch, queries, heads, in.v.size(3)}, in.v.options().dtype(type));
  const BlockedOutputs out{o, row(), row(), row()};
  const Tensor first_key = first_keys(in);
  const int64_t products = batch * queries * heads * in.k.size(1) * in.v.size(3);  // at most, per product of two
  (few_queries(in) ? run_few : run_forward)(kernel_call(in, first_key, out), kernels::parallel(products));
  return out;
}

BlockedGradients backward_one(const BlockedInputs& in, const BlockedOutputs& outputs, const Tensor& grad_o,
                              const Tensor& grad_lse, const Tensor& grad_row_max) {
  const auto room = [](const Tensor& x) { return kernels::room(x.sizes(), x.options()); };
  const auto plain = [](const Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; };
  const auto data = [](const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; };
  const BlockedGradients grads{room(in.q), room(in.k), room(in.v), {}, {}};
  const Tensor lse = plain(grad_lse), row_max = plain(grad_row_max), first_key = first_keys(in);
  const BlockedOutputs given{outputs.o, {}, plain(outputs.row_max), plain(outputs.denominator)};
  const AttentionKernel call = kernel_call(in, first_key, given);
  run_backward(call,
               {.grad_o = kernels::timed(grad_o, call.heads),
                .grad_lse = data(lse),
                .grad_row_max = data(row_max),
                .grad_q = kernels::timed(grads.q, call.heads),
                .grad_k = kernels::timed(grads.k, call.groups),
                .grad_v = kernels::timed(grads.v, call.groups)},
               kernels::parallel());
  return grads;
}

}  // namespace

bool kernel_takes(const BlockedInputs& in) {
  if (!takes_one(in)) return false;
  return !in.extra_k || (kernels::usable({*in.extra_k, *in.extra_v}) && ExtraCall::possible(in));
}

bool backward_kernel_takes(const BlockedInputs& in, const Tensor& grad_row_max) {
  // The maximum's gradient goes to one key of both sets.
  return kernel_takes(in) && !few_queries(in) && !(in.extra_k && grad_row_max.defined());
}

BlockedOutputs forward_by_kernel(const BlockedInputs& in) {
  const auto type = in.v.scalar_type();
  if (!in.extra_k) return forward_one(in, type);
  const ExtraCall call(in);
  BlockedOutputs extra = forward_one(call.inputs(), at::kFloat);
  for (Tensor* x : {&extra.o, &extra.row_max, &extra.denominator}) *x = call.unfolded(*x);
  BlockedOutputs all = forward_one(in, at::kFloat);
  join_sets(all, extra);
  all.o = all.o.to(type);
  return all;
}

BlockedGradients backward_by_kernel(const BlockedInputs& in, const BlockedOutputs& outputs, const Tensor& grad_o,
                                    const Tensor& grad_lse, const Tensor& grad_row_max) {
  if (!in.extra_k) return backward_one(in, outputs, grad_o, grad_lse, grad_row_max);
  // Weights are relative to both sets' maximum and denominator: each call has its own keys' share of the gradients.
  BlockedGradients grads = backward_one(in, outputs, grad_o, grad_lse, {});
  const ExtraCall call(in);
  const BlockedOutputs folded{
      call.folded(outputs.o), {}, call.folded(outputs.row_max), call.folded(outputs.denominator)};
  const BlockedGradients extra = backward_one(call.inputs(), folded, call.folded(grad_o), call.folded(grad_lse), {});
  grads.q.add_(call.unfolded(extra.q));
  grads.extra_k = call.gradient(extra.k, *in.extra_k);
  grads.extra_v = call.gradient(extra.v, *in.extra_v);
  return grads;
}

}  // namespace cortado::window
