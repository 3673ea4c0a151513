#include "cortado/mechanisms/gated_slot/op.h"

#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

SlotResult attend_slots(const SlotInputs& in, const SlotPass& pass) {
  auto [scores, key_state] = pass(in.q, in.k, "channel", in.scale, in.key_state);
  if (in.normalizer) scores = divide_or_zero(scores, *in.normalizer);
  if (in.hidden) scores = scores.masked_fill(*in.hidden, -kInfinity);
  Tensor p = at::softmax(scores, -1);
  if (in.normalizer) p = divide_or_zero(p, *in.normalizer);
  auto [o, value_state] = pass(p, in.v, "slot", 1.0, in.value_state);
  return {o, key_state, value_state};
}

SlotPass gated_slot_pass(const Tensor& weights, const OptionalTensor& gate, const OptionalTensor& cu_seqlens) {
  return [=](const Tensor& q, const Tensor& x, std::string_view read, double scale, const OptionalTensor& start) {
    return gated_scan(q, weights, x, gate, read == "slot" ? "key" : "value", scale, {}, start, cu_seqlens);
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

namespace {

constexpr const char* kGatedSlot = "gated_slot";

}  // namespace

double slot_scale(std::optional<double> scale, const Tensor& q) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(q.sym_size(-1).guard_int(__FILE__, __LINE__)));
}

SlotResult gated_slot(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                      std::optional<double> scale, const OptionalTensor& key_state, const OptionalTensor& value_state,
                      const OptionalTensor& cu_seqlens) {
  const NoAutocast as_given;
  given_together(kGatedSlot, {&key_state, &value_state}, "key_state and value_state");
  expect_shape(kGatedSlot, "s", s, {-1, -1, -1, -1});
  const auto type = accumulation_type({q, k, v, s, g, key_state, value_state});
  const SlotInputs in{q.to(type), k.to(type), v.to(type), slot_scale(scale, q), key_state, value_state};
  const SlotSizes sizes = check_slot_inputs(kGatedSlot, in, {{"s", s}, {"g", g}}, s.sym_size(3), cu_seqlens);
  SlotResult result =
      attend_slots(in, gated_slot_pass(expand_heads(s.to(type), sizes.heads.state), g.to(type), cu_seqlens));
  result.o = result.o.to(v.scalar_type());
  return result;
}

namespace {

std::tuple<Tensor, Tensor, Tensor> gated_slot_operator(const Tensor& q, const Tensor& k, const Tensor& v,
                                                       const Tensor& s, const Tensor& g, std::optional<double> scale,
                                                       const OptionalTensor& key_state,
                                                       const OptionalTensor& value_state,
                                                       const OptionalTensor& cu_seqlens) {
  const SlotResult result = gated_slot(q, k, v, s, g, scale, key_state, value_state, cu_seqlens);
  return {result.o, result.key_state, result.value_state};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "gated_slot(Tensor q, Tensor k, Tensor v, Tensor s, Tensor g, *, float? scale=None, Tensor? key_state=None, "
      "Tensor? value_state=None, Tensor? cu_seqlens=None) -> (Tensor o, Tensor key_state, Tensor value_state)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, gated_slot_operator));
}

}  // namespace cortado
