#include "cortado/primitives/gated_scan/by_aten.h"

#include "cortado/primitives/recomputed.h"

namespace cortado::gated {
namespace {

// Tokens per chunk. A chunk needs C·C·K numbers with a gate per channel, else C·C.
constexpr int64_t kChunk = 64, kChannelChunk = 16;

struct Rule {
  bool read_keys, factors, delta, before;  // before: a bonus; reads see the state before their token's write
};

enum Input { kQuery, kKeys, kValues, kGates, kBeta, kBonus, kState };

// Decays within a chunk, from its gates [B,H,C,K|1]. Only sums (or products) of gates are formed, never differences. So
// nothing cancels, no exponent is positive, and a gate may be -inf.
struct Decays {
  Tensor pairs;         // [t, s]: over s < u <= t, as reads see it: [B,H,C,C,K|1]; 0 if s is later
  Tensor enter, leave;  // over u <= t, and over u > s: [B,H,C,K|1]
  Tensor through;       // over the chunk: [B,H,K|1]

  Decays(const Tensor& gates, const Rule& rule) {
    const int64_t size = gates.size(2);
    const Tensor tokens = at::arange(size, gates.options().dtype(at::kLong));
    const double nothing = rule.factors ? 1 : 0;
    // [u, s]: the gate of token u if u is after s, else neutral.
    const Tensor behind = at::where((tokens.unsqueeze(1) > tokens.unsqueeze(0)).unsqueeze(-1), gates.unsqueeze(3),
                                    at::full({}, nothing, gates.options()));
    const auto over_time = [&](const Tensor& x) { return rule.factors ? x.cumprod(2) : x.cumsum(2).exp(); };
    const auto one_earlier = [](const Tensor& x) {  // shifted by one token: up to t - 1
      return at::cat({at::ones_like(x.narrow(2, 0, 1)), x.narrow(2, 0, x.size(2) - 1)}, 2);
    };
    const Tensor upto = over_time(behind), all = over_time(gates);
    leave = upto.select(2, size - 1);
    through = all.select(2, size - 1);
    enter = rule.before ? one_earlier(all) : all;
    const int64_t diagonal = rule.before ? -1 : 0;
    const Tensor seen = at::ones({size, size}, gates.options().dtype(at::kBool)).tril(diagonal).unsqueeze(-1);
    pairs = (rule.before ? one_earlier(upto) : upto).masked_fill(~seen, 0);
  }
};

// Return Σ_κ x_t y_s decay[t,s], [B,H,C,C], and Σ_s weights[t,s] decay[t,s] x_s, [B,H,C,K].
Tensor pair_products(const Tensor& x, const Tensor& y, const Tensor& decay) {
  if (decay.size(-1) == 1) return at::matmul(x, y.transpose(2, 3)) * decay.squeeze(-1);
  return (x.unsqueeze(3) * y.unsqueeze(2) * decay).sum(-1);
}
Tensor pair_sums(const Tensor& weights, const Tensor& x, const Tensor& decay) {
  if (decay.size(-1) == 1) return at::matmul(weights * decay.squeeze(-1), x);
  return (weights.unsqueeze(-1) * x.unsqueeze(2) * decay).sum(3);
}

// Computes one chunk: in[Input] [B,H,C,*] and the state [B,H,K,V] -> (reads [B,H,C,K|V], the next state).
Tensors read_chunk(const Tensors& in, const Rule& rule) {
  const Tensor &q = in[kQuery], &k = in[kKeys], &state = in[kState];
  const Tensor gates =
      in[kGates].defined() ? in[kGates] : at::full({1, 1, k.size(2), 1}, rule.factors ? 1 : 0, k.options());
  const Decays decay(gates, rule);
  Tensor v = in[kValues];
  if (rule.delta) {  // replaces v_t by what is stored: β_t (v_t - S'ᵀ k_t); S' includes the chunk's writes before t
    const Tensor beta = in[kBeta].unsqueeze(-1);
    const Tensor answers = pair_products(k * beta, k, decay.pairs).tril(-1);
    const Tensor left = beta * (v - at::matmul(k * decay.enter, state));
    v = at::linalg_solve_triangular(answers, left, /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  }
  Tensor o;
  if (rule.read_keys) {
    Tensor scores = pair_products(q, k, decay.pairs);
    if (rule.before) scores = scores + at::diag_embed((q * k * in[kBonus]).sum(-1));
    o = at::matmul(scores, v) + at::matmul(q * decay.enter, state);
  } else {
    o = pair_sums(at::matmul(q, v.transpose(2, 3)), k, decay.pairs) +
        decay.enter * at::matmul(q, state.transpose(2, 3));
  }
  const Tensor written = at::matmul((k * decay.leave).transpose(2, 3), v);
  return {o, state * decay.through.unsqueeze(-1) + written};
}

// Scans a dense batch: timed [B,T,H,*] (gates [B|1,T,H(,K)], beta [B,T,H]) -> (o [B,T,H,*], the last state).
Tensors scan_dense(const Tensors& timed, const Tensor& bonus, Tensor state, const Rule& rule, bool reverse) {
  Tensors by_head;  // [B,H,T,*]
  for (const Tensor& x : timed) {
    by_head.push_back(x.defined() ? (reverse ? x.flip(1) : x).transpose(1, 2) : x);
  }
  Tensor& gates = by_head[kGates];
  const bool channels = gates.defined() && gates.dim() == 4;
  if (gates.defined() && !channels) gates = gates.unsqueeze(-1);
  const Computation chunk = [rule](const Tensors& in) { return read_chunk(in, rule); };
  Tensors read;
  const int64_t tokens = timed[kKeys].size(1), length = channels ? kChannelChunk : kChunk;
  for (int64_t first = 0; first < tokens; first += length) {
    Tensors in;
    for (const Tensor& x : by_head) {
      in.push_back(x.defined() ? x.narrow(2, first, std::min(length, tokens - first)) : x);
    }
    in.insert(in.end(), {bonus, state});
    const Tensors out = recomputed(chunk, in);
    read.push_back(out[0]);
    state = out[1];
  }
  if (read.empty()) return {timed[rule.read_keys ? kValues : kKeys] * 1, state};
  const Tensor o = at::cat(read, 2).transpose(1, 2);
  return {reverse ? o.flip(1) : o, state};
}

// The scan as a function of its inputs, in the order of Input.
Computation scan_of(const ScanCall& call, const Bounds& bounds) {
  const Rule rule{call.read_keys, call.decay == DecayKind::kFactors, call.beta.defined(), call.bonus.defined()};
  return [rule, &call, &bounds](const Tensors& in) -> Tensors {
    const auto wide = [&](const Tensor& x, int64_t dim) {
      return x.defined() ? expand_heads(x.to(call.type), call.heads, dim) : x;
    };
    Tensors timed;
    for (const int i : {kQuery, kKeys, kValues, kGates, kBeta}) timed.push_back(wide(in[i], 2));
    timed[kQuery] = timed[kQuery] * call.factor;
    Tensor bonus = wide(in[kBonus], 0);
    if (bonus.defined()) bonus = bonus.unsqueeze(1);  // [H,1,K]
    const std::vector<int64_t> sizes{bounds.rows(call.k.size(0)), call.heads, call.k.size(3), call.v.size(3)};
    const Tensor start = in[kState].defined() ? wide(in[kState], 1) : at::zeros(sizes, timed[kQuery].options());
    const auto dense = [&](const Tensors& some, const Tensors& first) -> PackedResult {
      const Tensors out = scan_dense(some, bonus, first[0], rule, call.reverse);
      return {{out[0]}, {out[1]}};
    };
    const PackedResult all = bounds.run(timed, {start}, dense);
    return {all.timed[0], first_of_copies(all.rows[0], call.state_heads)};
  };
}

Tensors inputs_of(const ScanCall& call) {
  return {call.q, call.k, call.v, call.g, call.beta, call.bonus, call.initial_state.value_or(Tensor())};
}

}  // namespace

FormOutputs read_by_aten(const ScanCall& call, const Bounds& bounds) {
  const at::NoGradGuard no_grad;
  const Tensors made = scan_of(call, bounds)(inputs_of(call));
  FormOutputs out;
  (call.read_keys ? out.w : out.y) = made[0];
  out.final_state = made[1];
  return out;
}

FormOutputs differentiate_by_aten(const ScanCall& call, const Bounds& bounds, const Tensor& grad_o,
                                  const Tensor& grad_state) {
  const Tensors found = gradients_of(scan_of(call, bounds), inputs_of(call), {grad_o, grad_state});
  FormOutputs out{.y = {},
                  .x = found[kKeys],
                  .w = {},
                  .v = found[kValues],
                  .g = found[kGates],
                  .beta = found[kBeta],
                  .bonus = {},
                  .initial = found[kState],
                  .final_state = {}};
  (call.read_keys ? out.y : out.w) = found[kQuery];
  if (call.bonus.defined()) out.bonus = found[kBonus].unsqueeze(0);  // with a batch dimension
  return out;
}

}  // namespace cortado::gated
