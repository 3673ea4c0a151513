// The definition: the full masked matrix of scores, softmax by autograd. All implementations are tested against it.
#include "cortado/primitives/common.h"
#include "cortado/primitives/window_attention/op.h"

namespace cortado {
namespace {

// [Tq, Tk]: true where query i, at position i + Tk - Tq on the keys' axis, sees key j.
Tensor visible_matrix(int64_t queries, int64_t keys, const WindowAttentionOptions& options, const Tensor& like) {
  const auto integers = like.options().dtype(at::kLong);
  const Tensor i = (at::arange(queries, integers) + (keys - queries)).unsqueeze(1);
  const Tensor j = at::arange(keys, integers).unsqueeze(0);
  Tensor seen = options.causal ? j <= i : at::ones({queries, keys}, integers.dtype(at::kBool));
  if (options.window) seen = seen & ((i - j).abs() < *options.window);
  return seen;
}

// One dense batch; all tensors have the accumulation type and `heads` heads.
TensorTuple<3> dense(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options) {
  const auto by_head = [](const Tensor& x) { return x.transpose(1, 2); };  // [B,T,H,*] -> [B,H,T,*]
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  Tensor keys = by_head(k), values = by_head(v);
  Tensor seen = visible_matrix(q.size(1), k.size(1), options, q).expand({q.size(0), q.size(2), -1, -1});
  if (options.first_key) {
    const Tensor j = at::arange(k.size(1), options.first_key->options());
    seen = seen & (j >= options.first_key->unsqueeze(1)).unsqueeze(1).unsqueeze(1);
  }
  if (options.extra_k) {
    keys = at::cat({by_head(*options.extra_k), keys}, 2);
    values = at::cat({by_head(*options.extra_v), values}, 2);
    Tensor extra_seen = at::ones({q.size(0), q.size(2), options.extra_k->size(1)}, seen.options());
    if (options.extra_mask) extra_seen = *options.extra_mask;
    seen = at::cat({extra_seen.unsqueeze(2).expand({-1, -1, q.size(1), -1}), seen}, 3);
  }
  Tensor scores = at::matmul(by_head(q), keys.transpose(2, 3)) * scale;
  if (options.softcap) scores = at::tanh(scores / *options.softcap) * *options.softcap;
  if (scores.size(3) == 0) {
    const Tensor nothing = at::full({q.size(0), q.size(1), q.size(2)}, -kInfinity, q.options());
    return {at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()), nothing, nothing};
  }
  // A row that sees no key gets scores of 0 for the softmax and is replaced afterwards, so that its gradients stay
  // finite.
  const Tensor row_seen = seen.any(3, true);
  const Tensor safe = scores.masked_fill(~seen & row_seen, -kInfinity).masked_fill(~row_seen, 0.0);
  const Tensor row_max = std::get<0>(safe.max(3)).masked_fill(~row_seen.squeeze(3), -kInfinity);
  const Tensor lse = at::logsumexp(safe, {3}).masked_fill(~row_seen.squeeze(3), -kInfinity);
  const Tensor o = at::matmul(at::softmax(safe, 3).masked_fill(~row_seen, 0.0), values);
  return {o.transpose(1, 2), lse.transpose(1, 2), row_max.transpose(1, 2)};
}

TensorTuple<3> packed(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options) {
  const auto query_bounds = sequence_bounds("window_attention_reference", *options.cu_seqlens, q.size(1));
  const auto key_bounds =
      sequence_bounds("window_attention_reference", options.cu_seqlens_k.value_or(*options.cu_seqlens), k.size(1));
  Tensors outputs, sums, maxima;
  for (int64_t n = 0; n + 1 < static_cast<int64_t>(query_bounds.size()); ++n) {
    const auto cut = [n](const Tensor& x, const std::vector<int64_t>& bounds) {
      return x.slice(1, bounds[n], bounds[n + 1]);
    };
    WindowAttentionOptions own = options;
    for (auto* rows : {&own.extra_k, &own.extra_v, &own.extra_mask}) {
      if (*rows) *rows = (*rows)->narrow(0, n, 1);
    }
    const auto [o, lse, row_max] = dense(cut(q, query_bounds), cut(k, key_bounds), cut(v, key_bounds), own);
    outputs.push_back(o);
    sums.push_back(lse);
    maxima.push_back(row_max);
  }
  if (outputs.empty()) return dense(q, k, v, {});
  return {at::cat(outputs, 1), at::cat(sums, 1), at::cat(maxima, 1)};
}

}  // namespace

TensorTuple<3> window_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const WindowAttentionOptions& options) {
  const auto type = accumulation_type({q, k, v, options.extra_k, options.extra_v});
  const int64_t heads = std::max({q.size(2), k.size(2), v.size(2)});
  const auto full = [&](const Tensor& x) { return expand_heads(x.to(type), heads); };
  WindowAttentionOptions own = options;
  if (own.extra_k) {
    own.extra_k = full(*own.extra_k);
    own.extra_v = full(*own.extra_v);
  }
  if (own.extra_mask) {
    const Tensor mask = own.extra_mask->dim() == 2 ? own.extra_mask->unsqueeze(1) : *own.extra_mask;
    own.extra_mask = expand_heads(mask, heads, 1);
  }
  auto [o, lse, row_max] =
      options.cu_seqlens ? packed(full(q), full(k), full(v), own) : dense(full(q), full(k), full(v), own);
  return {o.to(v.scalar_type()), lse, row_max};
}

}  // namespace cortado
