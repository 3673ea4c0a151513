#include "cortado/mechanisms/shared/part_scan.h"

#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/composition.h"
#include "cortado/primitives/delta_scan/op.h"
#include "cortado/primitives/dplr_scan/op.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

using Decay = SequenceParts::Decay;

// left_of_decays() for gates g in any of gated_scan's shapes: [B or 1,T+1,H,K or 1].
Tensor left_of_gates(const Tensor& g, int64_t tokens) {
  const Tensor gates = g.dim() == 1 || g.dim() == 3 ? g.unsqueeze(-1) : g;
  return left_of_decays(g.dim() <= 2 ? gates.expand({1, tokens, -1, -1}) : gates);
}

// Composes with gates that are given per token, or once for all tokens.
Composition compose(Tensors timed, const OptionalTensor& g, Decay kind, std::function<Composition(const Tensors&)> f) {
  Tensors fixed;
  if (g) (g->dim() >= 3 ? timed : fixed).push_back(*g);
  return compose(timed, fixed, kind, std::move(f));
}

// How a part of a scan maps the state S to M S + own; in[1] are its values. M is what the scan makes of the identity if
// all values are zero. scan(in, values, state) returns the last state.
template <typename Scan>
std::function<Composition(const Tensors&)> by_identity(const Tensor& start, const Scan& scan) {
  const int64_t values = start.size(3), keys = start.size(2);
  const Tensor identity = at::eye(keys, start.options()).expand({start.size(0), start.size(1), -1, -1});
  const Tensor both = at::cat({at::zeros_like(start), identity}, 3);
  return [=](const Tensors& in) -> Composition {
    const Tensor nothing = at::zeros({in[1].size(0), in[1].size(1), in[1].size(2), keys}, in[1].options());
    const Tensor last = scan(in, at::cat({in[1], nothing}, 3), both);
    return {last.narrow(3, values, keys), last.narrow(3, 0, values)};
  };
}

}  // namespace

Tensor state_before_part(const Tensor& k, const Tensor& v, const OptionalTensor& g, const Tensor& start,
                         const SequenceParts& parts) {
  const auto type = start.scalar_type();
  const int64_t heads = start.size(1);
  const auto made = [=](const Tensors& in) -> Composition {
    const int64_t tokens = in[0].size(1);
    Tensor keys = expand_heads(in[0].to(type), heads), decay = at::ones({1, 1, 1, 1}, keys.options());
    if (in.size() > 2) {
      const Tensor left = left_of_gates(in[2].to(type), tokens);
      keys = keys * left.narrow(1, 1, tokens);
      decay = left.select(1, 0).unsqueeze(3);
    }
    return {decay, sequence_sums(keys, expand_heads(in[1].to(type), heads), {})};
  };
  return compose({k, v}, g, Decay::kFactors, made).before(parts, start);
}

Tensor delta_state_before_part(const Tensor& k, const Tensor& v, const Tensor& beta, const OptionalTensor& g,
                               const Tensor& start, const SequenceParts& parts) {
  const auto scan = [](const Tensors& in, const Tensor& values, const Tensor& both) {
    const OptionalTensor gates = in.size() > 3 ? OptionalTensor(in[3]) : std::nullopt;
    return std::get<1>(delta_scan(in[0], in[0], values, in[2], gates, {}, both));
  };
  return compose({k, v, beta}, g, Decay::kMatrices, by_identity(start, scan)).before(parts, start, Decay::kMatrices);
}

Tensor dplr_state_before_part(const Tensor& k, const Tensor& v, const Tensor& a, const Tensor& b, const Tensor& g,
                              const Tensor& start, const SequenceParts& parts) {
  const auto scan = [](const Tensors& in, const Tensor& values, const Tensor& both) {
    return std::get<1>(dplr_scan(in[0], in[0], values, in[2], in[3], in[4], {}, both));
  };
  return compose({k, v, a, b}, g, Decay::kMatrices, by_identity(start, scan)).before(parts, start, Decay::kMatrices);
}

Tensor scan_part(const ScanInputs& in, const Batch& batch, SequenceState* state) {
  OptionalTensor start = start_of(state, "scan_state");
  if (batch.parts) start = state_before_part(in.k, in.v, in.g, *start, *batch.parts);
  auto [o, last] = gated_scan(for_products(in.q), for_products(in.k), for_products(in.v), in.g, "key", in.scale,
                              in.bonus, start, batch.cu_seqlens);
  if (state) state->at("scan_state") = last;
  return o;
}

}  // namespace cortado
