// Window attention that goes on from earlier keys and values: caches of softmax attention, rings of sliding windows.
#pragma once

#include "cortado/primitives/window_attention/op.h"

namespace cortado {

// Keys and values before this call, right-aligned: k [B|N,P,H,K], v [B|N,P,H,V]; `length` int64 [B|N] of the P are
// there (default all).
struct PastKeys {
  OptionalTensor k, v, length;
};

// The same without its lengths where every row is full: the common case, which needs no masking. (Reads the lengths.)
PastKeys drop_full_lengths(PastKeys past);

// The past followed by this call's keys, as window_attention takes them: dense (with the first key of each row), or
// packed.
struct JoinedKeys {
  Tensor k, v;
  OptionalTensor first_key;     // dense
  OptionalTensor cu_seqlens_k;  // packed
};

// What becomes of the places of a packed past in which there is no key: dropped, so that there are as many joined keys
// as the lengths (data, read here) say; or kept as a sequence of their own behind the last one, so that shapes depend
// on shapes alone, as tracing needs it. Then cu_seqlens_k has an entry more than cu_seqlens.
enum class UnusedPlaces { kDrop, kKeepBehind };

// k [B,T,H,K], v [B,T,H,V]; packed when cu_seqlens is given. Past and present of different types are promoted.
JoinedKeys join_past(const PastKeys& past, const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens,
                     UnusedPlaces unused = UnusedPlaces::kDrop);

// window_attention over joined keys; `options` says window, scale, cu_seqlens, ... (its first_key and cu_seqlens_k are
// set here).
Tensor attend_joined(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options);

// The last `keep` keys of every row, right-aligned, as the past of the next call; length is always given.
PastKeys keep_last(const JoinedKeys& keys, int64_t keep);

}  // namespace cortado
