#include "cortado/primitives/common.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado {
namespace {

// One dense batch, [B,T,H,L] from the states [B,H,L].
TimeSoftmax token_by_token(const Tensor& theta, Tensor alpha, Tensor m) {
  std::vector<Tensor> keys, gates, maxima, sums;
  for (int64_t t = 0; t < theta.size(1); ++t) {
    const Tensor now = theta.select(1, t), next = at::maximum(m, now.detach());
    const Tensor seen = next.masked_fill(next == -kInfinity, 0);
    gates.push_back(m - seen);
    keys.push_back((now - seen).exp());
    alpha = gates.back().exp() * alpha + keys.back();
    maxima.push_back(seen);
    sums.push_back(alpha);
    m = next;
  }
  const auto joined = [&](const std::vector<Tensor>& x) { return x.empty() ? theta : at::stack(x, 1); };
  return {joined(keys), joined(gates), joined(maxima), joined(sums), alpha, m};
}

}  // namespace

TimeSoftmax time_softmax_reference(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                                   const OptionalTensor& cu_seqlens) {
  std::vector<int64_t> bounds{0, theta.size(1)};
  if (cu_seqlens) bounds = sequence_bounds("time_softmax_reference", *cu_seqlens, theta.size(1));
  const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1;
  const std::vector<int64_t> rows{cu_seqlens ? sequences : theta.size(0), theta.size(2), theta.size(3)};
  const Tensor alpha = normalizer ? *normalizer : at::zeros(rows, theta.options());
  const Tensor m = maximum ? *maximum : at::full(rows, -kInfinity, theta.options());
  if (!cu_seqlens) return token_by_token(theta, alpha, m);
  std::vector<std::vector<Tensor>> all(6);
  for (int64_t n = 0; n < sequences; ++n) {
    const auto part =
        token_by_token(theta.slice(1, bounds[n], bounds[n + 1]), alpha.narrow(0, n, 1), m.narrow(0, n, 1));
    const Tensor* parts[] = {&part.keys,        &part.gate, &part.maximum, &part.normalizer, &part.last_normalizer,
                             &part.last_maximum};
    for (size_t i = 0; i < 6; ++i) all[i].push_back(*parts[i]);
  }
  const auto joined = [&](size_t i) { return at::cat(all[i], i < 4 ? 1 : 0); };
  return {joined(0), joined(1), joined(2), joined(3), joined(4), joined(5)};
}

}  // namespace cortado
