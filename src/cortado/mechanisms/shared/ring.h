// The ring of a sliding window inside a SequenceState, shared by `sliding_window` and `macchiato`.
#pragma once

#include <algorithm>

#include "cortado/nn/batch.h"
#include "cortado/nn/state.h"
#include "cortado/parallel/sequence_parts.h"
#include "cortado/primitives/window_attention/ring_on_gpu.h"

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

// Whether a ring is copied whole, with a token's keys behind it, by one kernel of a GPU: up to 32 MiB that takes less than
// a dozen small ones, two copies into spare room and a mask. Not asked: whether a graph is recorded, which would have no
// spare room; a kernel must have run before, as none can be loaded then.
inline bool copies(const window::Ring& ring, const Tensor& k, const Tensor& v) {
  constexpr int64_t kSmall = 1 << 24;
  return k.is_cuda() && ring.k.numel() < kSmall && window::gpu_joins(ring, k, v);
}

// The ring and k, v behind it.
inline JoinedKeys join_with_ring(SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch) {
  const Tensor &keys = state.at("keys"), &values = state.at("values"), &position = state.at("position");
  const bool in_place = appends(state, k, v, batch);
  if (const window::Ring ring{keys, values, position}; in_place && copies(ring, k, v))
    return window::join_ring(ring, k, v);
  PastKeys past{keys, values, position.clamp_max(keys.size(1))};
  // On a GPU the look would cost more than the mask does, and no token could be captured in a graph.
  if (!keys.is_cuda() || keys.size(1) == 0) past = drop_full_lengths(past);
  if (!in_place) return join_past(past, k, v, batch.cu_seqlens);
  JoinedKeys joined;
  joined.k = state.room().append("keys", *past.k, k, kRingRoom);
  joined.v = state.room().append("values", *past.v, v, kRingRoom);
  if (past.length) joined.first_key = at::rsub(*past.length, past.k->size(1));
  return joined;
}

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
