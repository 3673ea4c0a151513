#include "cortado/mechanisms/shared/part_scan.h"

#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/nn/left_of.h"
#include "cortado/nn/recomputed.h"
#include "cortado/parallel/sequence_parts.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {
namespace {

// left_of_decays of gates in any of gated_scan's shapes: [B or 1,T+1,H,K or 1].
Tensor left_of_gates(const Tensor& g, int64_t tokens) {
  const Tensor gates = g.dim() == 1 || g.dim() == 3 ? g.unsqueeze(-1) : g;
  return left_of_decays(g.dim() <= 2 ? gates.expand({1, tokens, -1, -1}) : gates);
}

}  // namespace

Tensor state_before_part(const Tensor& k, const Tensor& v, const OptionalTensor& g, const Tensor& start,
                         const SequenceParts& parts) {
  const auto type = start.scalar_type();
  const int64_t heads = start.size(1), tokens = k.size(1);
  const auto made = [=](const Tensors& in) -> Tensors {
    Tensor keys = expand_heads(in[0].to(type), heads), decay = at::ones({1, 1, 1, 1}, keys.options());
    if (in.size() > 2) {
      const Tensor left = left_of_gates(in[2].to(type), tokens);
      keys = keys * left.narrow(1, 1, tokens);
      decay = left.select(1, 0).unsqueeze(3);
    }
    return {decay, sequence_sums(keys, expand_heads(in[1].to(type), heads), {})};
  };
  const Tensors part = recomputed(g ? Tensors{k, v, *g} : Tensors{k, v}, made);
  return parts.state_before(part[0], part[1], start);
}

Tensor scan_part(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                 std::optional<double> scale, const OptionalTensor& bonus, const Batch& batch, SequenceState* state,
                 const std::string& name) {
  OptionalTensor start = start_of(state, name);
  if (batch.parts) start = state_before_part(k, v, g, *start, *batch.parts);
  auto [o, last] = gated_scan(q, k, v, g, "key", scale, bonus, start, batch.cu_seqlens);
  if (state) state->at(name) = last;
  return o;
}

}  // namespace cortado
