#include "cortado/mechanisms/shared/slots.h"

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
    if (read == "channel" && x.is_cuda()) return gated_scores(q, weights, x, gate, side, scale, start, cu_seqlens);
    return gated_scan(q, weights, x, gate, side, scale, {}, start, cu_seqlens);
  };
}

SlotSizes check_slot_inputs(const char* op, const SlotInputs& in, std::initializer_list<Named> writes,
                            const c10::SymInt& slots, const OptionalTensor& cu_seqlens) {
  SlotSizes sizes{};
  expect_shape(op, "v", in.v, {-1, -1, -1, -1});
  const c10::SymInt batch = in.v.sym_size(0), tokens = in.v.sym_size(1);
  expect_shape(op, "k", in.k, {batch, tokens, -1, -1});
  const c10::SymInt width = in.k.sym_size(3);
  expect_shape(op, "q", in.q, {batch, tokens, -1, width});
  // The state's heads: the largest count among all that enters it, which each of the others divides.
  c10::SymInt& most = sizes.heads.state = in.k.sym_size(2);
  if (in.v.sym_size(2) > most) most = in.v.sym_size(2);
  for (const auto& [name, x] : writes) {
    expect_shape(op, name, x, {batch, tokens, -1, slots});
    if (x.sym_size(2) > most) most = x.sym_size(2);
  }
  common_heads(op, {{"k", in.k.sym_size(2)}, {"v", in.v.sym_size(2)}, {"the state", most}});
  for (const auto& [name, x] : writes) common_heads(op, {{name, x.sym_size(2)}, {"the state", most}});
  sizes.heads.out = output_heads(op, in.q.sym_size(2), sizes.heads.state);
  sizes.rows = packed_rows(op, cu_seqlens, batch);
  sizes.slots = slots;
  if (in.key_state) expect_shape(op, "key_state", *in.key_state, {sizes.rows, sizes.heads.state, slots, width});
  if (in.value_state) {
    expect_shape(op, "value_state", *in.value_state, {sizes.rows, sizes.heads.state, slots, in.v.sym_size(3)});
  }
  return sizes;
}

double slot_scale(std::optional<double> scale, const Tensor& q) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(q.sym_size(-1).guard_int(__FILE__, __LINE__)));
}

}  // namespace cortado
