// The ring of a sliding window inside a SequenceState, shared by `sliding_window` and `macchiato`.
#pragma once

#include <algorithm>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/parallel/sequence_parts.h"
#include "cortado/primitives/window_attention/past.h"

namespace cortado {

// Tokens that a ring has room for before it is moved to new memory.
inline constexpr int64_t kRingRoom = 256;

// Dense tokens of which nothing is differentiated (not even q, whose gradient reads the ring): they can be written
// behind the ring where it lies.
inline bool appends(const SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch) {
  const Tensor &keys = state.at("keys"), &values = state.at("values");
  return !batch.cu_seqlens && !at::GradMode::is_enabled() && k.size(1) <= kRingRoom &&
         k.scalar_type() == keys.scalar_type() && v.scalar_type() == values.scalar_type();
}

// The least tokens of a part in another process that are all the ring which its neighbour begins with.
inline int64_t least_for_ring(int64_t window) { return std::max<int64_t>(1, window - 1); }

// The ring and k, v behind it (op.cpp).
JoinedKeys join_with_ring(SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch);

// Joins the ring, the state's "keys" and "values", and k, v, and leaves the last w - 1 of them in the ring. The position
// is the caller's to move.
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
