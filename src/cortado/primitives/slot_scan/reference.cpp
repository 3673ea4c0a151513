// The slot scan by its definition, token by token.
#include "cortado/primitives/reference.h"

#include "cortado/primitives/slot_scan/op.h"

namespace cortado {

TensorTuple<2> slot_scan_reference(const Tensor& q, const Tensor& w, const Tensor& x, const Tensor& decay,
                                   std::string_view read, std::optional<double> scale,
                                   const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens) {
  const auto type = accumulation_type({q, w, x, decay, initial_state});
  const auto timed = [](const Tensor& y) { return y.dim() == 2 ? y.unsqueeze(0).unsqueeze(2) : y; };
  const int64_t state_heads = std::max({timed(w).size(2), x.size(2), timed(decay).size(2)});
  const auto widen = [&, heads = std::max(state_heads, q.size(2))](const Tensor& y) {
    return expand_heads(timed(y).to(type), heads);
  };
  const bool read_slots = read == "slot";
  const double factor = scale.value_or(read_slots ? 1.0 : 1 / std::sqrt(static_cast<double>(x.size(3))));
  const Tensor queries = widen(q) * factor, writes = widen(w), values = widen(x), keeps = widen(decay);
  const auto step = [&](int64_t t, Tensor& state) {
    const auto now = [t](const Tensor& y) { return y.select(1, t); };
    state = now(keeps).unsqueeze(-1) * state + now(writes).unsqueeze(-1) * now(values).unsqueeze(-2);
    const Tensor query = now(queries);
    return read_slots ? (query.unsqueeze(-1) * state).sum(-2) : (state * query.unsqueeze(-2)).sum(-1);
  };
  const Tensor nothing =
      at::zeros({x.size(0), 0, values.size(2), read_slots ? x.size(3) : writes.size(3)}, values.options());
  const MatrixScan scan{"slot_scan_reference", writes, values, state_heads, initial_state, cu_seqlens};
  const auto [o, state] = matrix_by_token(scan, nothing, step);
  return {o.to(x.scalar_type()), state};
}

}  // namespace cortado
