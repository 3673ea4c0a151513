// Attention over M slots, shared by `gated_slot`, `abc` and `blurry_window`.
#pragma once

#include <functional>
#include <string_view>

#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

// Slots hold keys K~_t [M,K] and values V~_t [M,V], both written by one recurrence. o_t = V~_tᵀ softmax_M(K~_t q_t ·
// scale) takes two passes of a scan with a softmax between them: the first reads its state along the channels, the
// second along the slots.
struct SlotInputs {
  Tensor q, k, v;  // [B,T,h,K], [B,T,h,K], [B,T,h,V]
  double scale;
  OptionalTensor key_state, value_state;  // [B|N,H,M,K], [B|N,H,M,V]
  OptionalTensor normalizer = {};         // [B,T,H,M]: divides the slots of the scan
  OptionalTensor hidden = {};             // bool, broadcast to [B,T,H,M]: slots excluded from the softmax
};

// One pass: scans x with the mechanism's weights and decays from the state `start`, and reads with q along "slot" or
// "channel". Returns (reads, final state).
using SlotPass = std::function<TensorTuple<2>(const Tensor& q, const Tensor& x, std::string_view read, double scale,
                                              const OptionalTensor& start)>;

struct SlotResult {
  Tensor o;                       // [B,T,H,V]
  Tensor key_state, value_state;  // [B|N,H,M,K], [B|N,H,M,V]

  std::vector<Tensor> tensors() const { return {o, key_state, value_state}; }
};

SlotResult attend_slots(const SlotInputs& in, const SlotPass& pass);

// The type in which a gated scan's passes take q, k, v and the weights: `type`, or v's own where a GPU has kernels for
// it. Scores are float32 at least in either case.
at::ScalarType slot_operands(const Tensor& q, const Tensor& v, const c10::SymInt& slots, at::ScalarType type);

// A pass by gated_scan: weights [B,T,Hs,M], gate [B,T,h,M] (logs) or none.
SlotPass gated_slot_pass(const Tensor& weights, const OptionalTensor& gate, const OptionalTensor& cu_seqlens);

// Adds the slots to the state: "key_state" and "value_state" [rows,H,M,d].
inline void declare_slots(StateLayout& layout, int64_t heads, int64_t slots, int64_t head_dim) {
  layout.scan("key_state", {heads, slots, head_dim});
  layout.scan("value_state", {heads, slots, head_dim});
}

inline void keep_slots(SequenceState* state, const SlotResult& result) {
  keep(state, {{"key_state", result.key_state}, {"value_state", result.value_state}});
}

// The scale of the scores: `scale`, or K^-1/2 for q [B,T,H,K].
double slot_scale(std::optional<double> scale, const Tensor& q);

}  // namespace cortado
