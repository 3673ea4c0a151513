// Window attention that continues from earlier keys and values: caches of softmax attention, rings of sliding windows.
#pragma once

#include "cortado/primitives/window_attention/op.h"

namespace cortado {

// Keys and values before this call, right-aligned: k [B|N,P,H,K], v [B|N,P,H,V]. Of the P places, `length` int64 [B|N]
// are filled (default: all).
struct PastKeys {
  OptionalTensor k, v, length;
};

// Drops the lengths if every row is full: the common case, which needs no masking. Reads the lengths' values.
PastKeys drop_full_lengths(PastKeys past);

// The past followed by this call's keys, as window_attention takes them: dense (with each row's first key), or packed.
struct JoinedKeys {
  Tensor k, v;
  OptionalTensor first_key;     // dense
  OptionalTensor cu_seqlens_k;  // packed
};

// How to treat the unfilled places of a packed past. kDrop: they are removed, so the number of joined keys depends
// on the lengths' values, which are read. kKeepBehind: they become an extra sequence after the last one, so shapes
// depend only on shapes, as tracing needs; cu_seqlens_k then has one entry more than cu_seqlens.
enum class UnusedPlaces { kDrop, kKeepBehind };

// k [B,T,H,K], v [B,T,H,V]; packed if cu_seqlens is given. Different types of past and present are promoted.
JoinedKeys join_past(const PastKeys& past, const Tensor& k, const Tensor& v, const OptionalTensor& cu_seqlens,
                     UnusedPlaces unused = UnusedPlaces::kDrop);

// window_attention over joined keys. `options` sets window, scale, cu_seqlens, ...; first_key and cu_seqlens_k are set
// here.
Tensor attend_joined(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options);
// As attend_joined(), with the logs of the sums of exp(score): o and lse.
TensorTuple<2> attend_joined_with_sums(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options);

// The last `keep` keys of every row, right-aligned, as the next call's past; its length is always set.
PastKeys keep_last(const JoinedKeys& keys, int64_t keep);

}  // namespace cortado
