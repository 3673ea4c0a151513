#include "cortado/primitives/dplr_scan/by_aten.h"

namespace cortado::dplr {
namespace {

// Tokens per chunk. A chunk needs C·C·K numbers for the decays between its tokens.
constexpr int64_t kChunk = 16;

// Decays within a chunk, from its gates [B,H,C,K]. Only sums of gates are formed, never differences. So nothing cancels,
// no exponent is positive, and a gate may be -inf.
struct Decays {
  Tensor upto, before;         // [t, s]: over s < u <= t, and over s < u < t; 0 if s is later: [B,H,C,C,K]
  Tensor enter, enter_before;  // over u <= t, and over u < t: [B,H,C,K]
  Tensor leave;                // over u > s: [B,H,C,K]
  Tensor through;              // over the chunk: [B,H,K]

  explicit Decays(const Tensor& gates) {
    const int64_t size = gates.size(2);
    const Tensor tokens = at::arange(size, gates.options().dtype(at::kLong));
    // [u, s]: the gate of token u if u is after s, else 0.
    const Tensor behind = at::where((tokens.unsqueeze(1) > tokens.unsqueeze(0)).unsqueeze(-1), gates.unsqueeze(3),
                                    at::zeros({}, gates.options()));
    const auto one_earlier = [](const Tensor& x) {  // shifted by one token: up to t - 1
      return at::cat({at::ones_like(x.narrow(2, 0, 1)), x.narrow(2, 0, x.size(2) - 1)}, 2);
    };
    const auto seen = [&](int64_t diagonal) {
      return at::ones({size, size}, gates.options().dtype(at::kBool)).tril(diagonal).unsqueeze(-1);
    };
    const Tensor all = behind.cumsum(2).exp();
    upto = all.masked_fill(~seen(0), 0);
    before = one_earlier(all).masked_fill(~seen(-1), 0);
    enter = gates.cumsum(2).exp();
    enter_before = one_earlier(enter);
    leave = all.select(2, size - 1);
    through = enter.select(2, size - 1);
  }
};

// Returns Σ_κ x_t y_s decay[t,s], [B,H,C,C].
Tensor pairs(const Tensor& x, const Tensor& y, const Tensor& decay) {
  return (x.unsqueeze(3) * y.unsqueeze(2) * decay).sum(-1);
}

// Computes one chunk: in[Input] [B,H,C,*] and the state [B,H,K,V] -> (reads [B,H,C,V], the next state).
Tensors read_chunk(const Tensors& in) {
  const Tensor &q = in[kQuery], &k = in[kKeys], &v = in[kValues], &a = in[kReads], &b = in[kWrites];
  const Tensor& state = in[kState];
  const Decays decay(in[kGates]);
  // u_t = S_{t-1}ᵀ a_t, and S_{t-1} includes b_s ⊗ u_s of earlier tokens: a triangular system.
  const Tensor known = at::matmul(pairs(a, k, decay.before), v) + at::matmul(a * decay.enter_before, state);
  const Tensor u = at::linalg_solve_triangular(-pairs(a, b, decay.before), known, /*upper=*/false, /*left=*/true,
                                               /*unitriangular=*/true);
  const Tensor o = at::matmul(pairs(q, k, decay.upto), v) + at::matmul(pairs(q, b, decay.upto), u) +
                   at::matmul(q * decay.enter, state);
  const auto written = [&](const Tensor& by, const Tensor& what) {
    return at::matmul((by * decay.leave).transpose(2, 3), what);
  };
  return {o, state * decay.through.unsqueeze(-1) + written(k, v) + written(b, u)};
}

// Scans a dense batch: timed [B,T,H,*] -> (o [B,T,H,V], the last state).
Tensors scan_dense(const Tensors& timed, Tensor state) {
  const Computation chunk = [](const Tensors& in) { return read_chunk(in); };
  Tensors read;
  const int64_t tokens = timed[kKeys].size(1);
  for (int64_t first = 0; first < tokens; first += kChunk) {
    Tensors in;
    for (const Tensor& x : timed) in.push_back(x.transpose(1, 2).narrow(2, first, std::min(kChunk, tokens - first)));
    in.push_back(state);
    const Tensors out = recomputed(chunk, in);
    read.push_back(out[0]);
    state = out[1];
  }
  if (read.empty()) return {timed[kValues] * 1, state};
  return {at::cat(read, 2).transpose(1, 2), state};
}

}  // namespace

Computation by_aten(const Call& call, const Bounds& bounds) {
  return [call, &bounds](const Tensors& in) -> Tensors {
    const auto wide = [&](const Tensor& x, int64_t dim) { return expand_heads(x.to(call.type), call.heads, dim); };
    Tensors timed;
    for (const int i : {kQuery, kKeys, kValues, kReads, kWrites, kGates}) timed.push_back(wide(in[i], 2));
    timed[kQuery] = timed[kQuery] * call.factor;
    const std::vector<int64_t> sizes{bounds.rows(in[kKeys].size(0)), call.heads, call.keys, call.values};
    const Tensor start = in[kState].defined() ? wide(in[kState], 1) : at::zeros(sizes, timed[kQuery].options());
    const auto dense = [](const Tensors& some, const Tensors& first) -> PackedResult {
      const Tensors out = scan_dense(some, first[0]);
      return {{out[0]}, {out[1]}};
    };
    const PackedResult all = bounds.run(timed, {start}, dense);
    const Tensor& last = all.rows[0];  // a copy for each query head; the first of each group is returned
    return {all.timed[0], last.unflatten(1, {call.state_heads, -1}).select(2, 0).contiguous()};
  };
}

}  // namespace cortado::dplr
