#include "cortado/primitives/window_attention/past.h"

namespace cortado {
namespace {

// Lengths of packed sequences from their bounds.
Tensor lengths_of(const Tensor& bounds) {
  return bounds.narrow(0, 1, bounds.size(0) - 1) - bounds.narrow(0, 0, bounds.size(0) - 1);
}

Tensor bounds_of(const Tensor& lengths) { return at::cat({at::zeros({1}, lengths.options()), lengths.cumsum(0)}); }

// Each row's past without its unused places, then the row's tokens: sorting all of them by row, stably, interleaves
// them.
JoinedKeys join_packed(const PastKeys& past, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens) {
  const int64_t rows = past.k->size(0), places = past.k->size(1);
  const auto counts = cu_seqlens.options().dtype(at::kLong);
  const Tensor length = past.length ? past.length->to(at::kLong) : at::full({rows}, places, counts);
  const Tensor fresh = lengths_of(cu_seqlens.to(at::kLong));
  const Tensor there = at::arange(places, counts).unsqueeze(0) >= (places - length).unsqueeze(1);
  const Tensor number = at::arange(rows, counts);
  const Tensor row =
      at::cat({number.unsqueeze(1).expand({rows, places}).masked_select(there), number.repeat_interleave(fresh)});
  const Tensor order = at::argsort(row, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Tensor kept = there.flatten().nonzero().squeeze(1);
  auto join = [&](const Tensor& before, const Tensor& now) {
    const Tensor all = at::cat({before.flatten(0, 1).index_select(0, kept).to(now.scalar_type()), now.squeeze(0)});
    return all.index_select(0, order).unsqueeze(0);
  };
  return {join(*past.k, k), join(*past.v, v), std::nullopt, bounds_of(length + fresh)};
}

}  // namespace

PastKeys drop_full_lengths(PastKeys past) {
  if (past.length && past.length->eq(past.k->size(1)).all().item<bool>()) past.length.reset();
  return past;
}

JoinedKeys join_past(const PastKeys& past, const Tensor& k, const Tensor& v, const std::optional<Tensor>& cu_seqlens) {
  if (!past.k) return {k, v, std::nullopt, cu_seqlens};
  if (cu_seqlens) return join_packed(past, k, v, *cu_seqlens);
  std::optional<Tensor> first;
  if (past.length) first = past.k->sym_size(1) - past.length->to(at::kLong);
  return {at::cat({past.k->to(k.scalar_type()), k}, 1), at::cat({past.v->to(v.scalar_type()), v}, 1), first,
          std::nullopt};
}

Tensor attend_joined(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options) {
  options.first_key = keys.first_key;
  options.cu_seqlens_k = keys.cu_seqlens_k;
  return std::get<0>(window_attention(q, keys.k, keys.v, options));
}

PastKeys keep_last(const JoinedKeys& keys, int64_t keep) {
  if (!keys.cu_seqlens_k) {
    const int64_t total = keys.k.size(1), kept = std::min(total, keep);
    const Tensor length = keys.first_key ? (total - *keys.first_key).clamp_max(kept)
                                         : at::full({keys.k.size(0)}, kept, keys.k.options().dtype(at::kLong));
    return {keys.k.narrow(1, total - kept, kept), keys.v.narrow(1, total - kept, kept), length};
  }
  const Tensor bounds = keys.cu_seqlens_k->to(at::kLong);
  const Tensor total = lengths_of(bounds), length = total.clamp_max(keep);
  const int64_t rows = total.size(0), kept = rows ? length.max().item<int64_t>() : 0;
  // Place j of a row, counted from the right, is the row's j-th last key; places before its first key are zero.
  const Tensor back = at::arange(kept - 1, -1, -1, bounds.options());
  const Tensor place = bounds.narrow(0, 1, rows).unsqueeze(1) - 1 - back.unsqueeze(0);
  const Tensor absent = back.unsqueeze(0) >= total.unsqueeze(1);
  auto take = [&](const Tensor& x) {
    const Tensor picked = x.squeeze(0).index_select(0, place.masked_fill(absent, 0).flatten());
    return picked.unflatten(0, {rows, kept}).masked_fill(absent.unsqueeze(2).unsqueeze(3), 0);
  };
  if (keys.k.size(1) == 0) return {keys.k.expand({rows, 0, -1, -1}), keys.v.expand({rows, 0, -1, -1}), length};
  return {take(keys.k), take(keys.v), length};
}

}  // namespace cortado
