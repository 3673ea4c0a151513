// The gated scan by its definition, token by token.
#include "cortado/primitives/reference.h"

#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/gated_scan/scan.h"

namespace cortado {

TensorTuple<2> gated_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                                    std::string_view read, std::optional<double> scale, const OptionalTensor& bonus,
                                    const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                                    bool reverse) {
  const auto type = accumulation_type({q, k, v, g, bonus, initial_state});
  Tensor gate = gated::timed_gate(g, k.size(1));
  if (gate.defined() && gate.dim() == 3) gate = gate.unsqueeze(-1);
  const int64_t state_heads = std::max({k.size(2), v.size(2), gate.defined() ? gate.size(2) : 1});
  const auto widen = [&, heads = std::max(state_heads, q.size(2))](const Tensor& x, int64_t dim = 2) {
    return x.defined() ? expand_heads(x.to(type), heads, dim) : x;
  };
  const bool read_keys = read == "key";
  const double factor = scale.value_or(read_keys ? 1 / std::sqrt(static_cast<double>(k.size(3))) : 1.0);
  const Tensor queries = widen(q) * factor, keys = widen(k), values = widen(v), gates = widen(gate);
  const Tensor own = widen(bonus.value_or(Tensor()), 0);  // [H,K]
  const auto step = [&](int64_t t, Tensor& state) {
    const auto now = [t](const Tensor& x) { return x.select(1, t); };
    const Tensor query = now(queries), written = now(keys).unsqueeze(-1) * now(values).unsqueeze(-2);
    const Tensor before = state;
    state = (gates.defined() ? now(gates).exp().unsqueeze(-1) * state : state) + written;
    const Tensor seen = own.defined() ? before + own.unsqueeze(-1) * written : state;
    return read_keys ? (query.unsqueeze(-1) * seen).sum(-2) : (seen * query.unsqueeze(-2)).sum(-1);
  };
  const MatrixScan scan{"gated_scan_reference", keys, values, state_heads, initial_state, cu_seqlens, reverse};
  const auto [o, state] = matrix_by_token(scan, read_keys ? values : keys, step);
  return {o.to(v.scalar_type()), state};
}

}  // namespace cortado
