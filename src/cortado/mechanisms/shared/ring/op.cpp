#include "cortado/mechanisms/shared/ring/on_gpu.h"
#include "cortado/mechanisms/shared/ring/ring.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

// Whether one GPU kernel copies the whole ring and appends one token. Up to 32 MiB this takes less time than a dozen
// small kernels for two copies into spare memory and a mask. Does not ask whether a CUDA graph is being recorded (a
// recording has no spare memory): the kernel must have run before, since none can be loaded during recording.
bool copies(const window::Ring& ring, const Tensor& k, const Tensor& v) {
  constexpr int64_t kSmall = 1 << 24;
  return ring.k.numel() < kSmall && window::gpu_joins(ring, k, v);
}

JoinedKeys join_by_aten(SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch, bool in_place) {
  const Tensor &keys = state.at("keys"), &values = state.at("values");
  PastKeys past{keys, values, state.at("position").clamp_max(keys.size(1))};
  // On a GPU, reading the lengths would cost more than the mask saves, and it would prevent graph capture.
  if (!keys.is_cuda() || keys.size(1) == 0) past = drop_full_lengths(past);
  if (!in_place) return join_past(past, k, v, batch.cu_seqlens);
  JoinedKeys joined;
  joined.k = state.room().append("keys", *past.k, k, kRingRoom);
  joined.v = state.room().append("values", *past.v, v, kRingRoom);
  if (past.length) joined.first_key = at::rsub(*past.length, past.k->size(1));
  return joined;
}

}  // namespace

JoinedKeys join_with_ring(SequenceState& state, const Tensor& k, const Tensor& v, const Batch& batch) {
  const bool in_place = appends(state, k, v, batch);
  const window::Ring ring{state.at("keys"), state.at("values"), state.at("position")};
  return choose(
      "ring of keys", k,
      on_gpu(
          "kernel", [&] { return in_place && copies(ring, k, v); }, [&] { return window::join_ring(ring, k, v); }),
      otherwise("ATen", [&] { return join_by_aten(state, k, v, batch, in_place); }));
}

}  // namespace cortado
