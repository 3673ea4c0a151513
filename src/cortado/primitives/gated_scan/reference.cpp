// The gated scan by its definition, one token after the other.
#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

namespace {

struct WideArguments {
  Tensor q, k, v, g, bonus;  // all with H heads, of one type; g [B|1,T,H,K|1] or undefined; bonus [H,K] or undefined
  bool read_keys, reverse;
};

// Tokens [first, first + length) from a state [B,H,K,V]; returns (o [B,length,H,*], the last state).
std::tuple<Tensor, Tensor> run(const WideArguments& in, int64_t first, int64_t length, Tensor state) {
  std::vector<Tensor> outputs(length);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t t = in.reverse ? length - 1 - i : i;
    const auto at_time = [&](const Tensor& x) { return x.select(1, first + t); };
    const Tensor q = at_time(in.q), written = at_time(in.k).unsqueeze(-1) * at_time(in.v).unsqueeze(-2);
    const Tensor before = state;
    state = (in.g.defined() ? at_time(in.g).exp().unsqueeze(-1) * state : state) + written;
    const Tensor seen = in.bonus.defined() ? before + in.bonus.unsqueeze(-1) * written : state;
    outputs[t] = in.read_keys ? (q.unsqueeze(-1) * seen).sum(-2) : (seen * q.unsqueeze(-2)).sum(-1);
  }
  if (length > 0) return {at::stack(outputs, 1), state};
  return {(in.read_keys ? in.v : in.k).narrow(1, 0, 0), state};
}

Tensor timed_gate(const Tensor& g, int64_t tokens) {
  if (g.dim() == 4) return g;
  if (g.dim() == 3) return g.unsqueeze(-1);
  const Tensor constant = g.dim() == 1 ? g.unsqueeze(-1) : g;  // [H,K|1]
  return constant.expand({1, tokens, constant.size(0), constant.size(1)});
}

}  // namespace

std::tuple<Tensor, Tensor> gated_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const std::optional<Tensor>& g, std::string_view read,
                                                std::optional<double> scale, const std::optional<Tensor>& bonus,
                                                const std::optional<Tensor>& initial_state,
                                                const std::optional<Tensor>& cu_seqlens, bool reverse) {
  const auto type = accumulation_type({q, k, v, g, bonus, initial_state});
  const int64_t tokens = k.size(1);
  const Tensor gate = g ? timed_gate(g->to(type), tokens) : Tensor();
  const int64_t state_heads = std::max({k.size(2), v.size(2), gate.defined() ? gate.size(2) : 1});
  const int64_t heads = std::max(state_heads, q.size(2));
  const auto widen = [&](const Tensor& x, int64_t dim) {
    return x.defined() ? expand_heads(x.to(type), heads, dim) : x;
  };
  const bool read_keys = read == "key";
  const double factor = scale.value_or(read_keys ? 1 / std::sqrt(static_cast<double>(k.size(3))) : 1.0);
  const WideArguments in{widen(q, 2) * factor,
                         widen(k, 2),
                         widen(v, 2),
                         widen(gate, 2),
                         bonus ? widen(*bonus, 0) : Tensor(),
                         read_keys,
                         reverse};
  const std::vector<int64_t> bounds =
      cu_seqlens ? sequence_bounds("gated_scan_reference", *cu_seqlens, tokens) : std::vector<int64_t>{0, tokens};
  const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1, rows = cu_seqlens ? sequences : k.size(0);
  const Tensor start = initial_state ? expand_heads(initial_state->to(type), heads, 1)
                                     : at::zeros({rows, heads, k.size(3), v.size(3)}, k.options().dtype(type));
  std::vector<Tensor> outputs, states;
  for (int64_t n = 0; n < sequences; ++n) {
    const auto [o, state] = run(in, bounds[n], bounds[n + 1] - bounds[n], cu_seqlens ? start.narrow(0, n, 1) : start);
    outputs.push_back(o);
    states.push_back(state);
  }
  const Tensor o = outputs.empty() ? (read_keys ? in.v : in.k).narrow(1, 0, 0) : at::cat(outputs, 1);
  const Tensor state = states.empty() ? start : at::cat(states, 0);
  return {o.to(v.scalar_type()), state.unflatten(1, {state_heads, heads / state_heads}).select(2, 0)};
}

}  // namespace cortado
