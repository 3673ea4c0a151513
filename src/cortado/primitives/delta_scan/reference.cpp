// The delta scan by its definition, token by token.
#include "cortado/primitives/reference.h"

#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/gated_scan/scan.h"

namespace cortado {

TensorTuple<2> delta_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                    const OptionalTensor& g, std::optional<double> scale,
                                    const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens) {
  const auto type = accumulation_type({q, k, v, beta, g, initial_state});
  Tensor gate = gated::timed_gate(g, k.size(1));
  if (gate.defined() && gate.dim() == 3) gate = gate.unsqueeze(-1);
  const int64_t state_heads = std::max({k.size(2), v.size(2), beta.size(2), gate.defined() ? gate.size(2) : 1});
  const auto widen = [&, heads = std::max(state_heads, q.size(2))](const Tensor& x) {
    return expand_heads(x.to(type), heads);
  };
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(k.size(3))));
  const Tensor queries = widen(q) * factor, keys = widen(k), values = widen(v), betas = widen(beta);
  const Tensor decays = gate.defined() ? widen(gate).exp() : Tensor();
  const auto step = [&](int64_t t, Tensor& state) {
    const auto column = [t](const Tensor& x) { return x.select(1, t).unsqueeze(-1); };  // [B,H,K,1]
    const Tensor key = column(keys);
    if (decays.defined()) state = column(decays) * state;
    const Tensor held = (state * key).sum(-2);  // the state's prediction for the key: [B,H,V]
    const Tensor correction = column(betas) * (values.select(1, t) - held);
    state = state + key * correction.unsqueeze(-2);
    return (state * column(queries)).sum(-2);
  };
  const MatrixScan scan{"delta_scan_reference", keys, values, state_heads, initial_state, cu_seqlens};
  const auto [o, state] = matrix_by_token(scan, values, step);
  return {o.to(v.scalar_type()), state};
}

}  // namespace cortado
