// Window attention that goes on from earlier keys and values: caches of softmax attention, rings of sliding windows.
#pragma once

#include "cortado/primitives/window_attention/op.h"

namespace cortado {

// Keys and values before this call, right-aligned: k [B|N,P,H,K], v [B|N,P,H,V]; `length` int64 [B|N] of the P are
// there (default all).
struct PastKeys {
  std::optional<Tensor> k, v, length;
};

// The same without its lengths where every row is full: the common case, which needs no masking. (Reads the lengths.)
PastKeys drop_full_lengths(PastKeys past);

// The past followed by this call's keys, as window_attention takes them: dense (with the first key of each row), or
// packed.
struct JoinedKeys {
  Tensor k, v;
  std::optional<Tensor> first_key;     // dense
  std::optional<Tensor> cu_seqlens_k;  // packed
};

// k [B,T,H,K], v [B,T,H,V]; packed when cu_seqlens is given.
JoinedKeys join_past(const PastKeys& past, const Tensor& k, const Tensor& v, const std::optional<Tensor>& cu_seqlens);

// window_attention over joined keys; `options` says window, scale, cu_seqlens, ... (its first_key and cu_seqlens_k are
// set here).
Tensor attend_joined(const Tensor& q, const JoinedKeys& keys, WindowAttentionOptions options);

// The last `keep` keys of every row, right-aligned, as the past of the next call; length is always given.
PastKeys keep_last(const JoinedKeys& keys, int64_t keep);

}  // namespace cortado
