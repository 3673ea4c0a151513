#include "cortado/mechanisms/shared/slots.h"

#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/gated_scan/on_gpu.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

SlotResult attend_slots(const SlotInputs& in, const SlotPass& pass) {
  auto [scores, key_state] = pass(in.q, in.k, "channel", in.scale, in.key_state);
  if (in.normalizer) scores = divide_or_zero(scores, *in.normalizer);
  if (in.hidden) scores = scores.masked_fill(*in.hidden, -kInfinity);
  Tensor p = at::softmax(scores, -1);
  if (in.normalizer) p = divide_or_zero(p, *in.normalizer);
  auto [o, value_state] = pass(p.to(in.v.scalar_type()), in.v, "slot", 1.0, in.value_state);
  return {o, key_state, value_state};
}

at::ScalarType slot_operands(const Tensor& q, const Tensor& v, const c10::SymInt& slots, at::ScalarType type) {
  const auto tokens = v.sym_size(1).maybe_as_int(), keys = q.sym_size(3).maybe_as_int(),
             values = v.sym_size(3).maybe_as_int(), count = slots.maybe_as_int();
  const bool known = tokens && keys && values && count && q.scalar_type() == v.scalar_type();
  return known && *tokens > 1 ? gated::operand_type(v, {*keys, *values, *count}, type) : type;
}

SlotPass gated_slot_pass(const Tensor& weights, const OptionalTensor& gate, const OptionalTensor& cu_seqlens) {
  return [=](const Tensor& q, const Tensor& x, std::string_view read, double scale, const OptionalTensor& start) {
    const std::string_view side = read == "slot" ? "key" : "value";
    const bool wide = read == "channel" && cuda::is_short(x.scalar_type());  // scores are not rounded
    if (wide) return gated_scores(q, weights, x, gate, side, scale, start, cu_seqlens);
    return gated_scan(q, weights, x, gate, side, scale, {}, start, cu_seqlens);
  };
}

double slot_scale(std::optional<double> scale, const Tensor& q) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(q.sym_size(-1).guard_int(__FILE__, __LINE__)));
}

}  // namespace cortado
