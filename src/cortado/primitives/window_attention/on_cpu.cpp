// Window attention by its CPU kernel, for torch tensors.
#include <ATen/Parallel.h>

#include "cortado/primitives/common.h"
#include "cortado/primitives/kernels/tensors.h"
#include "cortado/primitives/window_attention/inputs.h"
#include "cortado/primitives/window_attention/kernel.h"

namespace cortado::window {

namespace {

// With up to this many queries per sequence, transposing the keys does not pay.
constexpr int64_t kFewestQueries = 8;

int64_t sequences(const AttentionInputs& in) {
  return in.visible.sequence.empty() ? 1 : in.visible.sequence.back() + 1;
}

bool few_queries(const AttentionInputs& in) { return in.q.size(1) < kFewestQueries * (in.packed ? sequences(in) : 1); }

// The call points into the inputs and outputs, which must outlive it.
AttentionKernel kernel_call(const AttentionInputs& in, const Tensor& first_key, const AttentionOutputs& out) {
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
  call.lse = kernels::numbers(out.lse);
  return call;
}

Tensor first_keys(const AttentionInputs& in) { return in.first_key ? in.first_key->contiguous() : Tensor(); }

// takes_one, forward_one and backward_one handle one call's q, k and v only; an extra set is a second call.
bool takes_one(const AttentionInputs& in) {
  return kernels::usable({in.q, in.k, in.v}) && in.k.size(2) == in.v.size(2) && in.q.size(2) % in.k.size(2) == 0 &&
         (!few_queries(in) || in.q.size(1) <= kFewQueries);
}

// o in `type`.
AttentionOutputs forward_one(const AttentionInputs& in, at::ScalarType type) {
  const int64_t batch = in.q.size(0), queries = in.q.size(1), heads = in.q.size(2);
  const auto row = [&] { return kernels::room({batch, queries, heads}, in.q.options().dtype(at::kFloat)); };
  const Tensor o = kernels::room({batch, queries, heads, in.v.size(3)}, in.v.options().dtype(type));
  const AttentionOutputs out{o, row(), row(), row()};
  const Tensor first_key = first_keys(in);
  const int64_t products = batch * queries * heads * in.k.size(1) * in.v.size(3);  // at most, per product of two
  (few_queries(in) ? run_few : run_forward)(kernel_call(in, first_key, out), kernels::parallel(products));
  return out;
}

InputGradients backward_one(const AttentionInputs& in, const AttentionOutputs& outputs, const Tensor& grad_o,
                            const Tensor& grad_lse, const Tensor& grad_row_max) {
  const auto room = [](const Tensor& x) { return kernels::room(x.sizes(), x.options()); };
  using kernels::plain;
  const InputGradients grads{room(in.q), room(in.k), room(in.v), {}, {}};
  const Tensor lse = plain(grad_lse), row_max = plain(grad_row_max), first_key = first_keys(in);
  const AttentionOutputs given{outputs.o, {}, plain(outputs.row_max), plain(outputs.denominator)};
  const AttentionKernel call = kernel_call(in, first_key, given);
  run_backward(call,
               {.grad_o = kernels::timed(grad_o, call.heads),
                .grad_lse = kernels::numbers(lse),
                .grad_row_max = kernels::numbers(row_max),
                .grad_q = kernels::timed(grads.q, call.heads),
                .grad_k = kernels::timed(grads.k, call.groups),
                .grad_v = kernels::timed(grads.v, call.groups)},
               kernels::parallel());
  return grads;
}

// --- The extra set: a second call. Both calls' results are joined under one denominator. ---

constexpr int64_t kGrain = 1 << 14;  // numbers per thread that are worth starting one

// Reorders every row's entries of x [rows,E,H,*] by order [rows,E].
Tensor reorder(const Tensor& x, const Tensor& order) {
  const Tensor row = at::arange(x.size(0), order.options()).unsqueeze(1) * x.size(1);
  return x.flatten(0, 1).index_select(0, (order + row).flatten()).view(x.sizes());
}

// [B,T,H,...] -> [B·count,T,H/count,...]
Tensor heads_to_rows(const Tensor& x, int64_t count) {
  if (count == 1) return x;
  return x.unflatten(2, {count, x.size(2) / count}).movedim(2, 1).flatten(0, 1);
}

Tensor rows_to_heads(const Tensor& x, int64_t count) {
  if (count == 1) return x;
  return x.unflatten(0, {x.size(0) / count, count}).movedim(1, 2).flatten(2, 3);
}

// Visible keys of packed queries: each sees its sequence's E extra keys, except the first `hidden` ones.
VisibleKeys packed_ranges(const std::vector<int64_t>& sequences, int64_t extra, const Tensor& hidden) {
  VisibleKeys visible;
  visible.sequence = sequences;
  for (const int64_t n : sequences) {
    const int64_t first = hidden.defined() ? hidden.const_data_ptr<int64_t>()[n] : 0;
    visible.begin.push_back(n * extra + first);
    visible.end.push_back((n + 1) * extra);
  }
  return visible;
}

// The call for the extra set: the set's keys become the keys of a call of its own. Keys that a mask hides are moved
// before the visible ones, and the call's first_key (packed: its ranges) excludes them. If the mask differs between
// heads, heads become batch rows.
class ExtraCall {
 public:
  // Whether there is such a call: not for packed sequences with a mask per head.
  static bool possible(const AttentionInputs& all) {
    const bool by_head = all.extra_mask && all.extra_mask->dim() == 3 && all.extra_mask->size(1) > 1;
    return all.extra_k->size(1) > 0 && !(all.packed && by_head);
  }

  explicit ExtraCall(const AttentionInputs& all) {
    const int64_t extra = all.extra_k->size(1), heads = all.q.size(2);
    inputs_.scale = all.scale;
    inputs_.softcap = all.softcap;
    inputs_.packed = all.packed;
    Tensor hidden;  // hidden keys per row, [rows]
    if (all.extra_mask) {
      const Tensor& mask = *all.extra_mask;
      mask_heads_ = mask.dim() == 3 ? mask.size(1) : 1;
      const Tensor rows = mask.dim() == 3 ? mask.flatten(0, 1) : mask;
      order_ = at::argsort(rows, /*stable=*/true, 1, /*descending=*/false);
      hidden = extra - rows.sum(1);
    }
    // As many heads as the set has, if k and v agree and the mask is not per head; else all heads.
    const bool alike = mask_heads_ == 1 && all.extra_k->size(2) == all.extra_v->size(2);
    inputs_.q = folded(all.q);
    inputs_.k = arranged(*all.extra_k, alike ? all.extra_k->size(2) : heads);
    inputs_.v = arranged(*all.extra_v, alike ? all.extra_v->size(2) : heads);
    if (all.packed) {
      inputs_.visible = packed_ranges(all.visible.sequence, extra, hidden);
    } else {
      inputs_.visible = visible_keys({0, all.q.size(1)}, {0, extra}, std::nullopt, /*causal=*/false);
      if (hidden.defined()) inputs_.first_key = hidden;
    }
  }

  const AttentionInputs& inputs() const { return inputs_; }
  // [B,Tq,H,...] to the call's batch rows, and back.
  Tensor folded(const Tensor& x) const { return x.defined() ? heads_to_rows(x, mask_heads_) : x; }
  Tensor unfolded(const Tensor& x) const { return rows_to_heads(x, mask_heads_); }

  // Converts the call's gradient of its keys or values to that of the operator's tensor `given`.
  Tensor gradient(const Tensor& of_call, const Tensor& given) const {
    Tensor rows = inputs_.packed ? of_call.squeeze(0).unflatten(0, {given.size(0), given.size(1)}) : of_call;
    if (order_.defined()) rows = reorder(rows, at::argsort(order_, /*stable=*/false, 1, /*descending=*/false));
    return sum_heads(rows_to_heads(rows, mask_heads_), given.size(2)).contiguous();
  }

 private:
  Tensor arranged(const Tensor& x, int64_t heads) const {
    const Tensor rows = heads_to_rows(expand_heads(x, heads), mask_heads_);
    const Tensor placed = order_.defined() ? reorder(rows, order_) : rows;
    return inputs_.packed ? placed.flatten(0, 1).unsqueeze(0) : placed;
  }

  int64_t mask_heads_ = 1;  // heads that have their own batch row
  Tensor order_;            // int64 [rows, E]: the keys' order; undefined: as given
  AttentionInputs inputs_;
};

// Replaces the softmax over the first set of keys by that over both, given the softmax over each: float32, `all`
// contiguous.
void join_sets(AttentionOutputs& all, const AttentionOutputs& extra) {
  const int64_t rows = all.row_max.numel(), width = all.o.size(3);
  const auto numbers = [](const Tensor& x) { return x.data_ptr<float>(); };
  float *o = numbers(all.o), *lse = numbers(all.lse), *top = numbers(all.row_max), *sum = numbers(all.denominator);
  const Tensor extra_o = extra.o.contiguous(), extra_max = extra.row_max.contiguous(),
               extra_sum = extra.denominator.contiguous();
  const float *more = numbers(extra_o), *more_top = numbers(extra_max), *more_sum = numbers(extra_sum);
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       const float both = more_top[row] <= top[row] || std::isnan(top[row]) ? top[row] : more_top[row];
                       if (both == -std::numeric_limits<float>::infinity()) continue;  // no key is seen
                       // The weight of each set; a set without visible keys has the maximum -inf and weight 0.
                       const float one = std::exp(top[row] - both) * sum[row],
                                   other = std::exp(more_top[row] - both) * more_sum[row];
                       sum[row] = one + other;
                       top[row] = both;
                       lse[row] = both + std::log(sum[row]);
                       const float a = one / sum[row], b = other / sum[row];
                       for (int64_t i = row * width; i < (row + 1) * width; ++i) o[i] = a * o[i] + b * more[i];
                     }
                   });
}

}  // namespace

bool kernel_takes(const AttentionInputs& in) {
  if (!takes_one(in)) return false;
  return !in.extra_k || (kernels::usable({*in.extra_k, *in.extra_v}) && ExtraCall::possible(in));
}

bool backward_kernel_takes(const AttentionInputs& in, const Tensor& grad_row_max) {
  // The gradient of the maximum goes to one key of both sets together, which two calls cannot do.
  return kernel_takes(in) && !few_queries(in) && !(in.extra_k && grad_row_max.defined());
}

AttentionOutputs forward_by_kernel(const AttentionInputs& in) {
  const auto type = in.v.scalar_type();
  if (!in.extra_k) return forward_one(in, type);
  const ExtraCall call(in);
  AttentionOutputs extra = forward_one(call.inputs(), at::kFloat);
  for (Tensor* x : {&extra.o, &extra.row_max, &extra.denominator}) *x = call.unfolded(*x);
  AttentionOutputs all = forward_one(in, at::kFloat);
  join_sets(all, extra);
  all.o = all.o.to(type);
  return all;
}

InputGradients backward_by_kernel(const AttentionInputs& in, const AttentionOutputs& outputs, const Tensor& grad_o,
                                  const Tensor& grad_lse, const Tensor& grad_row_max) {
  if (!in.extra_k) return backward_one(in, outputs, grad_o, grad_lse, grad_row_max);
  // The weights are relative to both sets' maximum and denominator, so each call computes its own keys' share of the
  // gradients.
  InputGradients grads = backward_one(in, outputs, grad_o, grad_lse, {});
  const ExtraCall call(in);
  const AttentionOutputs folded{
      call.folded(outputs.o), {}, call.folded(outputs.row_max), call.folded(outputs.denominator)};
  const InputGradients extra = backward_one(call.inputs(), folded, call.folded(grad_o), call.folded(grad_lse), {});
  grads.q.add_(call.unfolded(extra.q));
  grads.extra_k = call.gradient(extra.k, *in.extra_k);
  grads.extra_v = call.gradient(extra.v, *in.extra_v);
  return grads;
}

}  // namespace cortado::window
