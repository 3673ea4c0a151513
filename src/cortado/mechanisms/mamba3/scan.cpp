#include "cortado/mechanisms/mamba3/scan.h"

#include "cortado/mechanisms/shared/part_scan.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/nn/composition.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/short_conv/op.h"

namespace cortado {
namespace {

// The angles' sums Σ_{s<=t} turn_s, float64 [B,T,H,S], counted from the state's "angle": float32 would lose a token's
// turn after some thousand tokens.
Tensor summed_turns(const Tensor& turn, const Batch& batch, SequenceState* state) {
  const int64_t tokens = turn.size(1);
  const Tensor sums = at::constant_pad_nd(turn.to(at::kDouble), {0, 0, 0, 0, 1, 0}).cumsum(1);
  OptionalTensor start = start_of(state, "angle");
  if (batch.parts) {
    const Tensor own = sums.select(1, tokens).to(start->scalar_type());
    start = Composition{at::ones_like(own), own}.before(*batch.parts, *start);
  }
  Tensor angles = sums.narrow(1, 1, tokens), last = sums.select(1, tokens);
  if (batch.cu_seqlens) {
    const Tensor bounds = batch.cu_seqlens->to(turn.device(), at::kLong), all = sums.squeeze(0);
    Tensor offset = -all.index_select(0, bounds.slice(0, 0, -1));
    if (start) offset = offset + *start;
    angles = angles + offset.index_select(0, sequence_numbers(bounds, turn)).unsqueeze(0);
    last = all.index_select(0, bounds.slice(0, 1)) + offset;
  } else if (start) {
    angles = angles + start->unsqueeze(1);
    last = last + *start;
  }
  if (state) state->at("angle") = last.remainder(2 * M_PI).to(state->at("angle").scalar_type());
  return angles;
}

// Turns channels 2i and 2i + 1 of x [B,T,R,H,N] by angle i < S; cos, sin [B,T,1,H,S].
Tensor turned(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t channels = 2 * cos.size(-1);
  const auto pairs = x.narrow(-1, 0, channels).unflatten(-1, {-1, 2}).unbind(-1);
  const Tensor y = at::stack({pairs[0] * cos - pairs[1] * sin, pairs[0] * sin + pairs[1] * cos}, -1).flatten(-2);
  return channels == x.size(-1) ? y : at::cat({y, x.slice(-1, channels)}, -1);
}

// The token before: its turned B [B,T,R,H,N], x [B,T,H,P] and λΔ [B,T,H]. A short convolution with the taps (1, 0)
// moves them by one token, within packed sequences too.
struct Previous {
  Tensor b, x, weight;
};
Previous previous_token(const Tensor& b, const Tensor& x, const Tensor& weight, const Batch& batch,
                        SequenceState* state) {
  const Tensor all = at::cat({b.flatten(2), x.flatten(2), weight}, -1);
  const Tensor taps = at::zeros({all.size(2), 2}, all.options().requires_grad(false));
  taps.select(1, 0).fill_(1);
  auto [before, last] =
      short_conv(all, taps, {}, "none", batch.tail_before(all, start_of(state, "last")), batch.cu_seqlens);
  keep(state, {{"last", last}});
  const auto parts = before.split_with_sizes({b.flatten(2).size(2), x.flatten(2).size(2), weight.size(2)}, -1);
  return {parts[0].view(b.sizes()), parts[1].view(x.sizes()), parts[2]};
}

// Σ_s (c_r·b_s) v_s within each token, over all ranks s or only those after r. c, b [B,T,R,H,N], v [B,T,R,H,P].
Tensor within_tokens(const Tensor& c, const Tensor& b, const Tensor& v, bool only_after = false) {
  if (c.size(2) == 1) return (c * b).sum(-1, true) * v;
  const Tensor scores = at::matmul(c.transpose(2, 3), b.permute({0, 1, 3, 4, 2}));
  return at::matmul(only_after ? scores.triu(1) : scores, v.transpose(2, 3)).transpose(2, 3).to(v.scalar_type());
}

// The gated scan with R tokens per token: rank r of each writes and reads, and the first decays.
Tensor scan_ranks(const Tensor& c, const Tensor& b, const Tensor& v, const Tensor& g, const Batch& batch,
                  SequenceState* state) {
  const int64_t tokens = c.size(1), rank = c.size(2);
  if (rank == 1) return scan_part({c.squeeze(2), b.squeeze(2), v.squeeze(2), g, 1.0}, batch, state).unsqueeze(2);
  Batch of_ranks = batch;
  if (batch.cu_seqlens) of_ranks.cu_seqlens = *batch.cu_seqlens * rank;
  const Tensor gates = at::constant_pad_nd(g.unsqueeze(2), {0, 0, 0, rank - 1});
  const ScanInputs in = {c.flatten(1, 2), b.flatten(1, 2), v.flatten(1, 2), gates.flatten(1, 2), 1.0};
  // A read comes after the writes of its rank and of those before; add what the later ranks of the token write.
  return scan_part(in, of_ranks, state).unflatten(1, {tokens, rank}) + within_tokens(c, b, v, true);
}

}  // namespace

// With G_t = S_t - λ_t Δ_t B_t x_tᵀ the trapezoid is one write per token, of the token before: G_t = a_t G_{t-1} +
// a_t (λ_{t-1} Δ_{t-1} + (1 - λ_t) Δ_t) B_{t-1} x_{t-1}ᵀ. "scan_state" is G.
Tensor mamba3_scan(const Mamba3Operands& in, const Batch& batch, SequenceState* state) {
  Tensor angles = summed_turns(in.turn, batch, state).unsqueeze(2);
  if (in.turn.scalar_type() != at::kDouble) angles = angles.remainder(2 * M_PI).to(in.turn.scalar_type());
  const Tensor cos = angles.cos(), sin = angles.sin();
  const Tensor b = turned(in.b, cos, sin), c = turned(in.c, cos, sin);
  const Tensor now = in.step * in.trapezoid.sigmoid();
  const Previous before = previous_token(b, in.x, now, batch, state);
  const Tensor weight = in.decay.exp() * (before.weight + in.step * (-in.trapezoid).sigmoid());
  const auto weighted = [&](const Tensor& x, const Tensor& by) { return in.written(x * by.unsqueeze(-1)); };
  const Tensor read = scan_ranks(c, before.b, weighted(before.x, weight), in.decay, batch, state);
  return read + within_tokens(c, b, weighted(in.x, now)) + in.written(in.x) * in.skip.unsqueeze(-1);
}

Tensor mamba3_reference(const Mamba3Sizes& sizes, const Mamba3Operands& in) {
  const int64_t rows = in.x.size(0), channels = 2 * sizes.angles;
  Tensor angle = at::zeros({rows, sizes.heads, sizes.angles}, in.x.options());
  Tensor s = at::zeros({rows, sizes.heads, sizes.state, sizes.channels()}, in.x.options()), before = s;
  const auto turned = [&](const Tensor& x) {
    const Tensor pairs = at::view_as_complex(x.narrow(-1, 0, channels).unflatten(-1, {-1, 2}).contiguous());
    const Tensor unit = at::polar(at::ones_like(angle), angle).unsqueeze(1);
    return at::cat({at::view_as_real(pairs * unit).flatten(-2), x.slice(-1, channels)}, -1);
  };
  const Tensor v = in.written(in.x), lambda = in.trapezoid.sigmoid();
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < in.x.size(1); ++t) {
    const auto at_t = [&](const Tensor& per_head) { return per_head.select(1, t).unsqueeze(-1).unsqueeze(-1); };
    angle = angle + in.turn.select(1, t);
    const Tensor write = at::einsum("brhn,brhp->bhnp", {turned(in.b.select(1, t)), v.select(1, t)});
    const Tensor a = at_t(in.decay).exp(), step = at_t(in.step), share = at_t(lambda);
    s = a * s + (1 - share) * step * a * before + share * step * write;
    before = write;
    const Tensor read = at::einsum("brhn,bhnp->brhp", {turned(in.c.select(1, t)), s});
    outputs.push_back(read + in.skip.unsqueeze(-1) * v.select(1, t));
  }
  return outputs.empty() ? v : at::stack(outputs, 1);
}

}  // namespace cortado
