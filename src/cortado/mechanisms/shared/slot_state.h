// Slots in a SequenceState: "key_state" [rows,H,M,d], "value_state" [rows,H,M,d].
#pragma once

#include "cortado/mechanisms/shared/slots.h"
#include "cortado/nn/state_layout.h"

namespace cortado {

inline void declare_slots(StateLayout& layout, int64_t heads, int64_t slots, int64_t head_dim) {
  layout.scan("key_state", {heads, slots, head_dim});
  layout.scan("value_state", {heads, slots, head_dim});
}

inline void keep_slots(SequenceState* state, const SlotResult& result) {
  keep(state, {{"key_state", result.key_state}, {"value_state", result.value_state}});
}

}  // namespace cortado
