// The slot scan by its definition, one token after the other.
#include "cortado/primitives/common.h"
#include "cortado/primitives/slot_scan/op.h"

namespace cortado {

std::tuple<Tensor, Tensor> slot_scan_reference(const Tensor& q, const Tensor& w, const Tensor& x, const Tensor& decay,
                                               std::string_view read, std::optional<double> scale,
                                               const std::optional<Tensor>& initial_state,
                                               const std::optional<Tensor>& cu_seqlens) {
  const auto type = accumulation_type({q, w, x, decay, initial_state});
  const auto timed = [](const Tensor& y) { return y.dim() == 2 ? y.unsqueeze(0).unsqueeze(2) : y; };
  const int64_t state_heads = std::max({timed(w).size(2), x.size(2), timed(decay).size(2)});
  const int64_t heads = std::max(state_heads, q.size(2)), tokens = x.size(1);
  const auto widen = [&](const Tensor& y) { return expand_heads(y.to(type), heads, 2); };
  const bool read_slots = read == "slot";
  const double factor = scale.value_or(read_slots ? 1.0 : 1 / std::sqrt(static_cast<double>(x.size(3))));
  const Tensor queries = widen(q) * factor, writes = widen(timed(w)), values = widen(x), keeps = widen(timed(decay));
  const std::vector<int64_t> bounds =
      cu_seqlens ? sequence_bounds("slot_scan_reference", *cu_seqlens, tokens) : std::vector<int64_t>{0, tokens};
  const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1, rows = cu_seqlens ? sequences : x.size(0);
  const Tensor start = initial_state ? expand_heads(initial_state->to(type), heads, 1)
                                     : at::zeros({rows, heads, writes.size(3), x.size(3)}, values.options());
  std::vector<Tensor> outputs, states;
  for (int64_t n = 0; n < sequences; ++n) {
    Tensor state = cu_seqlens ? start.narrow(0, n, 1) : start;
    for (int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
      const auto now = [&](const Tensor& y) { return y.select(1, t); };
      state = now(keeps).unsqueeze(-1) * state + now(writes).unsqueeze(-1) * now(values).unsqueeze(-2);
      const Tensor query = now(queries);
      outputs.push_back(read_slots ? (query.unsqueeze(-1) * state).sum(-2) : (state * query.unsqueeze(-2)).sum(-1));
    }
    states.push_back(state);
  }
  const int64_t width = read_slots ? x.size(3) : writes.size(3);
  const Tensor o = outputs.empty() ? at::zeros({x.size(0), 0, heads, width}, values.options()) : at::stack(outputs, 1);
  const Tensor state = states.empty() ? start : at::cat(states, 0);
  return {o.to(x.scalar_type()), state.unflatten(1, {state_heads, heads / state_heads}).select(2, 0)};
}

}  // namespace cortado
