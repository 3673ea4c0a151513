// The scan by its definition, token by token.
#include "cortado/primitives/reference.h"

#include "cortado/primitives/dplr_scan/op.h"

namespace cortado {

TensorTuple<2> dplr_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& a, const Tensor& b,
                                   const Tensor& g, std::optional<double> scale, const OptionalTensor& initial_state,
                                   const OptionalTensor& cu_seqlens) {
  const auto type = accumulation_type({q, k, v, a, b, g, initial_state});
  const int64_t state_heads = std::max({k.size(2), v.size(2), a.size(2), b.size(2), g.size(2)});
  const auto widen = [&, heads = std::max(state_heads, q.size(2))](const Tensor& x) {
    return expand_heads(x.to(type), heads);
  };
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(k.size(3))));
  const Tensor queries = widen(q) * factor, keys = widen(k), values = widen(v);
  const Tensor reads = widen(a), writes = widen(b), decays = widen(g).exp();
  const auto step = [&](int64_t t, Tensor& state) {
    const auto column = [t](const Tensor& x) { return x.select(1, t).unsqueeze(-1); };  // [B,H,K,1]
    const Tensor held = (state * column(reads)).sum(-2, true);                          // [B,H,1,V]
    state = column(decays) * state + column(writes) * held + column(keys) * values.select(1, t).unsqueeze(-2);
    return (state * column(queries)).sum(-2);
  };
  const MatrixScan scan{"dplr_scan_reference", keys, values, state_heads, initial_state, cu_seqlens};
  const auto [o, state] = matrix_by_token(scan, values, step);
  return {o.to(v.scalar_type()), state};
}

}  // namespace cortado
