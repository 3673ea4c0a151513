#include "cortado/mechanisms/abc/op.h"

#include "cortado/primitives/latte_scan/scores.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado {
namespace {

constexpr const char* kAbcOp = "abc";

// In the order of the schema.
struct AbcArguments {
  const Tensor &q, &k, &v, &s;
  std::optional<double> scale;
  const OptionalTensor &key_state, &value_state, &normalizer, &maximum, &cu_seqlens;
};
using AbcSignature = TensorTuple<5>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::optional<double>,
                                    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                    const OptionalTensor&, const OptionalTensor&);

TensorTuple<5> abc_operator(const AbcArguments& in) {
  const AbcState start{in.key_state, in.value_state, in.normalizer, in.maximum};
  const AbcResult result = abc(in.q, in.k, in.v, in.s, in.scale, start, in.cu_seqlens);
  return {result.o, result.key_state, result.value_state, result.normalizer, result.maximum};
}

// Uses Latte's kernels, which compute the softmax over time themselves: the slots are latents, first of the keys, then
// of the values.
AbcResult abc_by_latents(const SlotInputs& in, const Tensor& s, const AbcState& start,
                         const OptionalTensor& cu_seqlens) {
  const LatteResult keys = latte_scores(in.q, s, in.k, {start.key_state, start.normalizer, start.maximum}, cu_seqlens);
  const Tensor p = at::softmax(keys.o * in.scale, -1);
  const LatteResult values =
      latte_scan(p, s, in.v, false, {start.value_state, start.normalizer, start.maximum}, cu_seqlens);
  return {values.o, keys.state, values.state, values.normalizer, values.maximum};
}

}  // namespace

AbcResult abc(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, std::optional<double> scale,
              const AbcState& start, const OptionalTensor& cu_seqlens) {
  const NoAutocast as_given;
  given_together(kAbcOp, {&start.key_state, &start.value_state, &start.normalizer, &start.maximum},
                 "key_state, value_state, normalizer and maximum");
  const Sizes sizes(kAbcOp, cu_seqlens,
                    {{"v", v, "BThV"},
                     {"k", k, "BThK"},
                     {"q", q, "BTqK"},
                     {"s", s, "BThM"},
                     {"key_state", start.key_state, "NSMK"},
                     {"value_state", start.value_state, "NSMV"},
                     {"normalizer", start.normalizer, "NSM"},
                     {"maximum", start.maximum, "NSM"}});
  const ScanHeads heads = heads_of(sizes);
  const auto type =
      accumulation_type({q, k, v, s, start.key_state, start.value_state, start.normalizer, start.maximum});
  const auto operands = slot_operands(q, v, s.sym_size(3), type);
  SlotInputs in{q.to(operands),       k.to(operands),  v.to(operands),
                slot_scale(scale, q), start.key_state, start.value_state};
  if (v.sym_size(1) != 1 && latte_scores_take(in.q, s, in.k, in.v)) return abc_by_latents(in, s, start, cu_seqlens);
  const TimeSoftmax p =
      time_softmax(expand_heads(s.to(type), heads.state), start.normalizer, start.maximum, cu_seqlens);
  in.normalizer = expand_heads(p.normalizer, heads.out);
  const SlotResult slots = attend_slots(in, gated_slot_pass(p.keys.to(operands), p.gate, cu_seqlens));
  return {slots.o.to(v.scalar_type()), slots.key_state, slots.value_state, p.last_normalizer, p.last_maximum};
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "abc(Tensor q, Tensor k, Tensor v, Tensor s, *, float? scale=None, Tensor? key_state=None, "
      "Tensor? value_state=None, Tensor? normalizer=None, Tensor? maximum=None, Tensor? cu_seqlens=None) -> (Tensor o, "
      "Tensor key_state, Tensor value_state, Tensor normalizer, Tensor maximum)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, gathered<AbcSignature, abc_operator>));
}

}  // namespace cortado
