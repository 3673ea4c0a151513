#include "cortado/primitives/window_attention/past.h"

#include <algorithm>

namespace cortado {
namespace {

// Lengths of packed sequences from their bounds.
Tensor lengths_of(const Tensor& bounds) { return bounds.slice(0, 1) - bounds.slice(0, 0, -1); }

Tensor bounds_of(const Tensor& lengths) { return at::cat({at::zeros({1}, lengths.options()), lengths.cumsum(0)}); }

// Interleaves each row's past with the row's tokens by a stable sort by row. Unused places of the past sort after the
// last row; they are cut off, or kept as one more sequence.
JoinedKeys join_packed(const PastKeys& past, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                       UnusedPlaces unused) {
  const c10::SymInt rows = past.k->sym_size(0), places = past.k->sym_size(1), tokens = k.sym_size(1);
  const auto counts = cu_seqlens.options().dtype(at::kLong);
  const Tensor length = past.length ? past.length->to(at::kLong) : at::full_symint({rows}, places, counts);
  const Tensor bounds = cu_seqlens.to(at::kLong);
  const Tensor there = at::arange(places, counts).unsqueeze(0) >= (places - length).unsqueeze(1);
  const Tensor number = at::arange(rows, counts);
  const Tensor row_before = at::where(there, number.unsqueeze(1), number.sym_size(0));  // [rows, places]
  const Tensor row_now = at::searchsorted(bounds, at::arange(tokens, counts), /*out_int32=*/false, /*right=*/true) - 1;
  Tensor order = at::argsort(at::cat({row_before.flatten(), row_now}), /*stable=*/true, /*dim=*/0,
                             /*descending=*/false);
  Tensor joined_bounds = bounds_of(length + lengths_of(bounds));
  if (unused == UnusedPlaces::kDrop) {
    order = order.narrow(0, 0, joined_bounds.select(0, rows.expect_int()).item<int64_t>());
  } else {
    joined_bounds = at::cat({joined_bounds, at::full_symint({1}, rows * places + tokens, counts)});
  }
  auto join = [&](const Tensor& before, const Tensor& now) {
    return at::cat({before.flatten(0, 1), now.squeeze(0)}).index_select(0, order).unsqueeze(0);
  };
  return {join(*past.k, k), join(*past.v, v), std::nullopt, joined_bounds};
}

}  // namespace

PastKeys drop_full_lengths(PastKeys past) {
  if (past.length && past.length->is_cpu() && past.length->scalar_type() == at::kLong && past.length->is_contiguous()) {
    // Read directly, because three operators would be a good part of a decoded token's time.
    const auto* length = past.length->const_data_ptr<int64_t>();
    const int64_t places = past.k->size(1);
    if (std::all_of(length, length + past.length->numel(), [&](int64_t n) { return n == places; })) past.length.reset();
    return past;
  }
  if (past.length && past.length->eq(past.k->size(1)).all().item<bool>()) past.length.reset();
  return past;
}

JoinedKeys join_past(const PastKeys& past, const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens,
                     UnusedPlaces unused) {
  if (!past.k) return {k, v, std::nullopt, cu_seqlens};
  if (cu_seqlens) return join_packed(past, k, v, *cu_seqlens, unused);
  OptionalTensor first;
  if (past.length) first = past.k->sym_size(1) - past.length->to(at::kLong);
  return {at::cat({*past.k, k}, 1), at::cat({*past.v, v}, 1), first, std::nullopt};
}

Tensor attend_joined(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options) {
  return std::get<0>(attend_joined_with_sums(q, keys, std::move(options)));
}

TensorTuple<2> attend_joined_with_sums(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options) {
  options.first_key = keys.first_key;
  options.cu_seqlens_k = keys.cu_seqlens_k;
  if (options.cu_seqlens && keys.cu_seqlens_k->sym_size(0) != options.cu_seqlens->sym_size(0)) {
    // The sequence of unused places has no queries.
    options.cu_seqlens = at::cat({*options.cu_seqlens, options.cu_seqlens->slice(0, -1)});
  }
  const auto [o, lse, _] = window_attention(q, keys.k, keys.v, options);
  return {o, lse};
}

PastKeys keep_last(const JoinedKeys& keys, int64_t keep) {
  if (!keys.cu_seqlens_k) {
    const int64_t total = keys.k.size(1), kept = std::min(total, keep);
    const Tensor length = keys.first_key ? at::rsub(*keys.first_key, total).clamp_max(kept)
                                         : at::full({keys.k.size(0)}, kept, keys.k.options().dtype(at::kLong));
    return {keys.k.narrow(1, total - kept, kept), keys.v.narrow(1, total - kept, kept), length};
  }
  const Tensor bounds = keys.cu_seqlens_k->to(at::kLong);
  const Tensor total = lengths_of(bounds), length = total.clamp_max(keep);
  const int64_t rows = total.size(0);
  if (keys.k.size(1) == 0) return {keys.k.expand({rows, 0, -1, -1}), keys.v.expand({rows, 0, -1, -1}), length};
  const int64_t kept = length.max().item<int64_t>();
  // Place j of a row, counted from the right, is the row's j-th last key; places before its first key are zero.
  const Tensor back = at::arange(kept - 1, -1, -1, bounds.options());
  const Tensor place = bounds.narrow(0, 1, rows).unsqueeze(1) - 1 - back.unsqueeze(0);
  const Tensor absent = back.unsqueeze(0) >= total.unsqueeze(1);
  auto take = [&](const Tensor& x) {
    const Tensor picked = x.squeeze(0).index_select(0, place.masked_fill(absent, 0).flatten());
    return picked.unflatten(0, {rows, kept}).masked_fill(absent.unsqueeze(2).unsqueeze(3), 0);
  };
  return {take(keys.k), take(keys.v), length};
}

}  // namespace cortado
