// The ring of a sliding window inside a SequenceState, shared by `sliding_window` and `macchiato`.
#pragma once

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// The window's past as the state's "keys", "values" and "position" hold it.
inline PastKeys ring_past(const SequenceState& state) {
  const Tensor& keys = state.at("keys");
  return drop_full_lengths({keys, state.at("values"), state.at("position").clamp_max(keys.size(1))});
}

// Joins the ring and k, v, and leaves the last w - 1 of them in the ring. The position is the caller's to move.
inline JoinedKeys advance_ring(SequenceState& state, const Tensor& k, const Tensor& v, int64_t window,
                               const Batch& batch) {
  const JoinedKeys joined = join_past(ring_past(state), k, v, batch.cu_seqlens);
  const PastKeys kept = keep_last(joined, window - 1);
  state.at("keys") = *kept.k;
  state.at("values") = *kept.v;
  return joined;
}

}  // namespace cortado
