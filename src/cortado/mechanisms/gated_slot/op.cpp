#include "cortado/mechanisms/gated_slot/op.h"

namespace cortado {
namespace {

constexpr const char* kGatedSlot = "gated_slot";

}  // namespace

SlotResult gated_slot(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                      std::optional<double> scale, const OptionalTensor& key_state, const OptionalTensor& value_state,
                      const OptionalTensor& cu_seqlens) {
  const NoAutocast as_given;
  given_together(kGatedSlot, {&key_state, &value_state}, "key_state and value_state");
  const Sizes sizes(kGatedSlot, cu_seqlens,
                    {{"v", v, "BThV"},
                     {"k", k, "BThK"},
                     {"q", q, "BTqK"},
                     {"s", s, "BThM"},
                     {"g", g, "BThM"},
                     {"key_state", key_state, "NSMK"},
                     {"value_state", value_state, "NSMV"}});
  const auto type = accumulation_type({q, k, v, s, g, key_state, value_state});
  const auto operands = slot_operands(q, v, s.sym_size(3), type);
  const SlotInputs in{q.to(operands), k.to(operands), v.to(operands), slot_scale(scale, q), key_state, value_state};
  SlotResult result =
      attend_slots(in, gated_slot_pass(expand_heads(s.to(operands), sizes['S']), g.to(type), cu_seqlens));
  result.o = result.o.to(v.scalar_type());
  return result;
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "gated_slot(Tensor q, Tensor k, Tensor v, Tensor s, Tensor g, *, float? scale=None, Tensor? key_state=None, "
      "Tensor? value_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor key_state, Tensor value_state)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, Unpacked<gated_slot>::call));
}

}  // namespace cortado
