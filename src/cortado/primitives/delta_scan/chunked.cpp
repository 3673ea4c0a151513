// The chunked form of the delta scan, forward and backward.
#include "cortado/primitives/gated_scan/chunked.h"

namespace cortado::delta {

namespace {

using gated::Decay;
using gated::FormInputs;
using gated::FormOptions;
using gated::FormOutputs;
using gated::Layout;
using gated::PairWork;

Tensor flat(const Tensor& x) { return x.flatten(0, 2); }  // [n,B,H,*,*] -> [N,*,*]

Tensor turned(const Tensor& x) { return x.transpose(1, 2); }

// One walk over the chunks, which forward and backward share. In chunk c the state is met, answered and changed:
//   u_c = free_c ∓ pull_c S_c,    S_{c+1} = through_c ⊙ S_c + plus_c ± push_cᵀ u_c,
// the upper signs forwards. free [n,B,H,C,V] becomes u; pull, push [n,B,H,C,K]; plus [n,B,H,K,V] and through may be
// undefined. Returns the states at all bounds [n+1,B,H,K,V]; backward: from the last chunk to the first, states[c]
// being the one after chunk c.
Tensor walk(const Tensor& free, const Tensor& pull, const Tensor& push, const Tensor& plus, const Tensor& through,
            const Tensor& start, bool backward) {
  const int64_t chunks = free.size(0);
  const double sign = backward ? -1 : 1;
  const Tensor states = at::empty({chunks + 1, free.size(1), free.size(2), pull.size(4), free.size(4)}, free.options());
  const Tensor first = states.select(0, backward ? chunks : 0);
  start.defined() ? first.copy_(start) : first.zero_();
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t c = backward ? chunks - 1 - i : i;
    const auto now = [c](const Tensor& x) { return x.select(0, c).flatten(0, 1); };
    const Tensor from = states.select(0, backward ? c + 1 : c);
    Tensor to = states.select(0, backward ? c : c + 1);
    Tensor u = now(free);
    u.baddbmm_(now(pull), from.flatten(0, 1), 1, -sign);
    if (through.defined()) {
      at::mul_out(to, from, through.select(0, c));
    } else {
      to.copy_(from);
    }
    if (plus.defined()) to.add_(plus.select(0, c));
    to.flatten(0, 1).baddbmm_(turned(now(push)), u, 1, sign);
  }
  return states;
}

// A stretch of time in chunks, with what both directions need.
struct Chunks {
  Layout layout;
  Tensor q, k, v, beta;  // beta [n,B,H,C,1]
  Decay decay;
  Tensor entering_q = {}, entering_k = {};  // q, k ⊙ exp(gates from the chunk's start)
  Tensor leaving = {};                      // k ⊙ exp(gates to its end)
  Tensor scores = {}, key_scores = {};      // [N,C,C]: q over k up to it and k over earlier k, with decay
  Tensor system = {};                       // beta key_scores
  Tensor corrections = {};                  // u_t = beta_t (v_t - S'ᵀ k_t): [n,B,H,C,V]
  Tensor starts = {}, final_state = {};     // S at each chunk's start [n,B,H,K,V], and at the end

  Tensor like(const Tensor& x) const {
    return x.view({layout.chunks(), layout.batch, layout.heads, x.size(1), x.size(2)});
  }

  // (I + system)⁻¹ x, or with the transposed matrix; x [N,C,*].
  Tensor solve(const Tensor& x, bool transposed) const {
    return at::linalg_solve_triangular(transposed ? turned(system) : system, x, /*upper=*/transposed, /*left=*/true,
                                       /*unitriangular=*/true)
        .contiguous();
  }

  // The products of queries y with the keys up to each, and their decay.
  Tensor pair_scores(const Tensor& y) const {
    PairWork work{};
    work.scores = true;
    decay.pairs(y, k, work);
    return work.scores_out;
  }
};

Chunks open_chunks(const FormInputs& in, const FormOptions& options) {
  const int64_t tokens = in.x.size(1);
  const Layout layout{in.x.size(0), tokens, options.heads, gated::chunk_length(tokens, options.chunk), options.type};
  const auto cut = [&layout](const Tensor& x) { return gated::to_chunks(x, layout); };
  Tensor g = cut(in.g);
  if (g.defined() && g.dim() == 4) g = g.unsqueeze(-1);
  const Decay decay(g, {}, layout.chunk, in.x.options().dtype(options.type));
  const bool read = options.want_w || options.want_rest;
  Chunks it{layout, read ? cut(in.y) : Tensor(), cut(in.x), cut(in.v), cut(in.beta).unsqueeze(-1), decay};
  if (read) {
    it.entering_q = decay.entering(it.q);
    it.scores = it.pair_scores(it.q);
  }
  it.entering_k = decay.entering(it.k);
  it.leaving = decay.leaving(it.k);
  it.key_scores = it.pair_scores(it.k);
  it.key_scores.diagonal(0, 1, 2).zero_();
  it.system = it.key_scores * flat(it.beta);
  it.corrections = it.like(it.solve(flat(it.v * it.beta), false));
  const Tensor pull = it.like(it.solve(flat(it.entering_k * it.beta), false));
  const Tensor states = walk(it.corrections, pull, it.leaving, {}, decay.through(), in.initial, false);
  it.starts = states.narrow(0, 0, layout.chunks());
  it.final_state = states.select(0, layout.chunks());
  return it;
}

// What the pairs (query y, key k) and the states give, of L = Σ_t w_tᵀ S_tᵀ y_t read as a plain gated scan of (k, u).
// Adds to dx [n,B,H,C,K], the keys' gradient; returns y's, and the gates' if wanted. The part of the gates' gradient
// that the keys and the chunk pass on to the next chunks comes with `flow`.
std::pair<Tensor, Tensor> read_gradients(const Chunks& it, const Tensor& y, const Tensor& entering, const Tensor& w,
                                         const Tensor& m, const Tensor& dx, bool want_gate, gated::GateFlow flow) {
  const Tensor from_state = it.like(at::bmm(flat(w), turned(flat(it.starts))));
  PairWork work{};
  work.m = m;
  work.dy = it.decay.entering(from_state);
  work.dx = dx;
  work.gate = want_gate;
  if (want_gate) {
    flow.enter = entering * from_state;
    if (it.decay.per_head()) flow.enter = flow.enter.sum(-1, true);
    work.flow = std::move(flow);
  }
  it.decay.pairs(y, it.k, work);
  return {work.dy, work.dg};
}

FormOutputs gradients(const Chunks& it, const FormInputs& in, const FormOptions& options) {
  const Layout& layout = it.layout;
  const Tensor grad_o = gated::to_chunks(in.w, layout);
  const Tensor u = flat(it.corrections);

  // x_c = M⁻ᵀ (scoresᵀ dO + leaving D_{c+1}), the gradient of the solve's right side; D_c = ∂L/∂S_c.
  const Tensor x = it.like(it.solve(at::bmm(turned(it.scores), flat(grad_o)), true));
  const Tensor pull = it.like(it.solve(flat(it.leaving), true));
  const Tensor plus = it.like(at::bmm(turned(flat(it.entering_q)), flat(grad_o)));
  const Tensor push = it.entering_k * it.beta;
  const Tensor states = walk(x, pull, push, plus, it.decay.through(), in.final_grad, true);
  const Tensor ends = states.narrow(0, 1, layout.chunks());
  const Tensor grad_v = x * it.beta;

  FormOutputs out;
  out.initial = states.select(0, 0).clone();
  const Tensor held = it.like(at::bmm(it.key_scores, u).baddbmm_(flat(it.entering_k), flat(it.starts)));
  out.beta = gated::from_chunks((x * (it.v - held)).sum(-1), layout);
  out.v = gated::from_chunks(grad_v, layout);

  // Two reads of the state: o by q, and -held by k, whose weights are dO and grad_v.
  const Tensor to_state = it.like(at::bmm(u, turned(flat(ends))));
  gated::GateFlow flow, second;
  if (options.want_gate) {
    flow.leave = it.leaving * to_state;
    flow.through = (it.starts * ends).sum(-1, true).mul(it.decay.through()).transpose(-1, -2);
    if (it.decay.per_head()) {
      flow.leave = flow.leave.sum(-1, true);
      flow.through = flow.through.sum(-1, true);
    }
    second.leave = at::zeros_like(flow.leave);
    second.through = at::zeros_like(flow.through);
  }
  const Tensor dk = it.decay.leaving(to_state), read_weights = grad_v.neg();
  const auto [dq, dg] = read_gradients(it, it.q, it.entering_q, grad_o, at::bmm(flat(grad_o), turned(u)), dk,
                                       options.want_gate, std::move(flow));
  const Tensor m = at::bmm(flat(read_weights), turned(u));
  m.diagonal(0, 1, 2).zero_();
  const auto [dk_read, dg_read] =
      read_gradients(it, it.k, it.entering_k, read_weights, m, dk, options.want_gate, std::move(second));
  out.y = gated::from_chunks(dq, layout);
  out.x = gated::from_chunks(dk + dk_read, layout);
  if (options.want_gate) {
    const Tensor sum = dg + dg_read;
    out.g = gated::from_chunks(in.g.dim() == 3 ? sum.squeeze(-1) : sum, layout);
  }
  return out;
}

}  // namespace

FormOutputs differentiate_segment(const FormInputs& in, const FormOptions& options) {
  const Chunks it = open_chunks(in, options);
  FormOutputs out;
  if (options.want_rest) out = gradients(it, in, options);
  if (options.want_w) {
    const Tensor o = at::bmm(it.scores, flat(it.corrections)).baddbmm_(flat(it.entering_q), flat(it.starts));
    out.w = gated::from_chunks(it.like(o), it.layout);
  }
  out.final_state = it.final_state.clone();
  return out;
}

}  // namespace cortado::delta
