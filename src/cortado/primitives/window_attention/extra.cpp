#include "cortado/primitives/window_attention/extra.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "cortado/primitives/common.h"

namespace cortado::window {
namespace {

constexpr int64_t kGrain = 1 << 14;  // numbers that are worth a thread

// x [rows,E,H,*] with every row's entries in the order [rows,E], whole entries at a time.
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

// The intervals of packed queries: each sees the last keys of its sequence's, E a sequence, but not the first `hidden`.
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

}  // namespace

bool ExtraCall::possible(const BlockedInputs& all) {
  const bool by_head = all.extra_mask && all.extra_mask->dim() == 3 && all.extra_mask->size(1) > 1;
  return all.extra_k->size(1) > 0 && !(all.packed && by_head);
}

ExtraCall::ExtraCall(const BlockedInputs& all) {
  const int64_t extra = all.extra_k->size(1), heads = all.q.size(2);
  inputs_.scale = all.scale;
  inputs_.softcap = all.softcap;
  inputs_.packed = all.packed;
  Tensor hidden;  // how many, [rows]
  if (all.extra_mask) {
    const Tensor& mask = *all.extra_mask;
    mask_heads_ = mask.dim() == 3 ? mask.size(1) : 1;
    const Tensor rows = mask.dim() == 3 ? mask.flatten(0, 1) : mask;
    order_ = at::argsort(rows, /*stable=*/true, 1, /*descending=*/false);
    hidden = extra - rows.sum(1);
  }
  // Sets of as many heads as they share; of all, where a mask or unlike sets divide them otherwise.
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

Tensor ExtraCall::folded(const Tensor& x) const { return x.defined() ? heads_to_rows(x, mask_heads_) : x; }

Tensor ExtraCall::unfolded(const Tensor& x) const { return rows_to_heads(x, mask_heads_); }

Tensor ExtraCall::arranged(const Tensor& x, int64_t heads) const {
  const Tensor rows = heads_to_rows(expand_heads(x, heads), mask_heads_);
  const Tensor placed = order_.defined() ? reorder(rows, order_) : rows;
  return inputs_.packed ? placed.flatten(0, 1).unsqueeze(0) : placed;
}

Tensor ExtraCall::gradient(const Tensor& of_call, const Tensor& given) const {
  Tensor rows = inputs_.packed ? of_call.squeeze(0).unflatten(0, {given.size(0), given.size(1)}) : of_call;
  if (order_.defined()) rows = reorder(rows, at::argsort(order_, /*stable=*/false, 1, /*descending=*/false));
  return sum_heads(rows_to_heads(rows, mask_heads_), given.size(2)).contiguous();
}

void join_sets(BlockedOutputs& all, const BlockedOutputs& extra) {
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
                       if (both == -std::numeric_limits<float>::infinity()) continue;  // neither shows anything
                       // What a set weighs; one that shows nothing has the maximum -inf and weighs nothing.
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

}  // namespace cortado::window
