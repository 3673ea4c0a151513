// The delta scan by its definition, one token after the other.
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/gates.h"

namespace cortado {

namespace {

struct WideArguments {
  Tensor q, k, v;  // [B,T,H,*], all of one type
  Tensor beta;     // [B,T,H]
  Tensor decay;    // exp g [B|1,T,H,K|1] or undefined
};

// Tokens [first, first + length) from a state [B,H,K,V]; returns (o [B,length,H,V], the last state).
std::tuple<Tensor, Tensor> run(const WideArguments& in, int64_t first, int64_t length, Tensor state) {
  if (length == 0) return {in.v.narrow(1, 0, 0), state};
  std::vector<Tensor> outputs;
  for (int64_t t = first; t < first + length; ++t) {
    const auto column = [t](const Tensor& x) { return x.select(1, t).unsqueeze(-1); };  // [B,H,K,1]
    const Tensor k = column(in.k);
    if (in.decay.defined()) state = column(in.decay) * state;
    const Tensor held = (state * k).sum(-2);  // what the state answers to k: [B,H,V]
    const Tensor correction = column(in.beta) * (in.v.select(1, t) - held);
    state = state + k * correction.unsqueeze(-2);
    outputs.push_back((state * column(in.q)).sum(-2));
  }
  return {at::stack(outputs, 1), state};
}

}  // namespace

std::tuple<Tensor, Tensor> delta_scan_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                                const std::optional<Tensor>& g, std::optional<double> scale,
                                                const std::optional<Tensor>& initial_state,
                                                const std::optional<Tensor>& cu_seqlens) {
  const auto type = accumulation_type({q, k, v, beta, g, initial_state});
  const int64_t tokens = k.size(1);
  Tensor gate = timed_gate(g, tokens);
  if (gate.defined() && gate.dim() == 3) gate = gate.unsqueeze(-1);
  const int64_t state_heads = std::max({k.size(2), v.size(2), beta.size(2), gate.defined() ? gate.size(2) : 1});
  const int64_t heads = std::max(state_heads, q.size(2));
  const auto widen = [&](const Tensor& x) { return expand_heads(x.to(type), heads); };
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(k.size(3))));
  const WideArguments in{widen(q) * factor, widen(k), widen(v), widen(beta),
                         gate.defined() ? widen(gate).exp() : Tensor()};
  const std::vector<int64_t> bounds =
      cu_seqlens ? sequence_bounds("delta_scan_reference", *cu_seqlens, tokens) : std::vector<int64_t>{0, tokens};
  const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1, rows = cu_seqlens ? sequences : k.size(0);
  const Tensor start = initial_state ? expand_heads(initial_state->to(type), heads, 1)
                                     : at::zeros({rows, heads, k.size(3), v.size(3)}, k.options().dtype(type));
  std::vector<Tensor> outputs{in.v.narrow(1, 0, 0)}, states{start.narrow(0, 0, 0)};
  for (int64_t n = 0; n < sequences; ++n) {
    const auto [o, state] = run(in, bounds[n], bounds[n + 1] - bounds[n], cu_seqlens ? start.narrow(0, n, 1) : start);
    outputs.push_back(o);
    states.push_back(state);
  }
  return {at::cat(outputs, 1).to(v.scalar_type()),
          at::cat(states, 0).unflatten(1, {state_heads, heads / state_heads}).select(2, 0)};
}

}  // namespace cortado
