// The ring of a sliding window inside a SequenceState, shared by `sliding_window` and `macchiato`.
#pragma once

#include <algorithm>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/parallel/sequence_parts.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// Spare tokens allocated with a ring; when they are used up the ring is moved to new memory.
inline constexpr int64_t kRingRoom = 256;

// Whether new tokens can be written in place, after the ring's last: they are dense and nothing is differentiated (not
// even q, whose gradient would read the ring).
inline bool appends(const SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch) {
  const Tensor &keys = state.at("keys"), &values = state.at("values");
  return !batch.cu_seqlens && !at::GradMode::is_enabled() && k.size(1) <= kRingRoom &&
         k.scalar_type() == keys.scalar_type() && v.scalar_type() == values.scalar_type();
}

// The fewest tokens of a part whose keys fill the ring with which the next process's part begins.
inline int64_t least_for_ring(int64_t window) { return std::max<int64_t>(1, window - 1); }

// Joins the ring and the new k, v (op.cpp).
JoinedKeys join_with_ring(SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch);

// Joins the ring (the state's "keys" and "values") with k, v, and keeps the last w - 1 of them as the ring. The caller
// updates the position.
inline JoinedKeys advance_ring(SequenceState& state, const Tensor& k, const Tensor& v, int64_t window,
                               const Batch& batch) {
  if (batch.parts) {
    const auto before = [&](const char* name, const Tensor& x) {
      state.at(name) = batch.parts->tail_before(x.slice(1, x.size(1) - (window - 1)), state.at(name));
    };
    before("keys", k);
    before("values", v);
  }
  const JoinedKeys joined = join_with_ring(state, k, v, batch);
  if (joined.cu_seqlens_k) {
    const PastKeys kept = keep_last(joined, window - 1);
    state.at("keys") = *kept.k;
    state.at("values") = *kept.v;
    return joined;
  }
  const int64_t total = joined.k.size(1), kept = std::min(total, window - 1);
  state.at("keys") = joined.k.narrow(1, total - kept, kept);
  state.at("values") = joined.v.narrow(1, total - kept, kept);
  return joined;
}

}  // namespace cortado
