#include "cortado/primitives/reference.h"

#include "cortado/primitives/time_softmax/op.h"

namespace cortado {

TimeSoftmax time_softmax_reference(const Tensor& theta, const OptionalTensor& normalizer, const OptionalTensor& maximum,
                                   const OptionalTensor& cu_seqlens) {
  const Tensor none = at::zeros({state_rows(theta, cu_seqlens), theta.size(2), theta.size(3)}, theta.options());
  const Tensor start = at::stack({normalizer.value_or(none), maximum.value_or(none - kInfinity)}, 1);
  const auto step = [&](int64_t t, Tensor& state) {
    const Tensor now = theta.select(1, t), m = state.select(1, 1), next = at::maximum(m, now).detach();
    const Tensor seen = next.masked_fill(next == -kInfinity, 0);
    const Tensor gate = m - seen, key = (now - seen).exp(), alpha = gate.exp() * state.select(1, 0) + key;
    state = at::stack({alpha, next}, 1);
    return at::stack({key, gate, seen, alpha}, 1);
  };
  const Tensor nothing = theta.unsqueeze(2).expand({-1, -1, 4, -1, -1});
  const auto [parts, last] = token_by_token("time_softmax_reference", cu_seqlens, theta.size(1), start, nothing, step);
  return {parts.select(2, 0), parts.select(2, 1), parts.select(2, 2),
          parts.select(2, 3), last.select(1, 0),  last.select(1, 1)};
}

}  // namespace cortado
