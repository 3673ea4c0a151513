// Exact softmax attention in chunks of queries and keys with a running maximum (Rabe and Staats 2021). Each query sees
// one interval of keys.
#pragma once

#include "cortado/primitives/window_attention/past.h"

namespace cortado {

struct IntervalOptions {
  // int64 [B,Tq] or [1,Tq]: query t sees keys begin..end-1; it sees none if begin >= end.
  Tensor begin = {}, end = {};
  int64_t chunk = 64;                // queries, and keys, per chunk
  std::optional<double> scale = {};  // default K^-1/2
  std::optional<double> softcap = {};
};

// q [B,Tq,H,K], k [B,Tk,Hs,K], v [B,Tk,Hs,V]. Returns o [B,Tq,H,V] (v's type) and lse [B,Tq,H], the log of the sum of
// exp over the keys seen. A query that sees no key has o = 0 and lse = -inf. Memory is O(Tq + Tk), in the backward pass
// too, which recomputes the scores. Pairs of chunks without a visible key are skipped.
TensorTuple<2> interval_attention(const Tensor& q, const Tensor& k, const Tensor& v, const IntervalOptions& options);

// Per query, int64 [B|1,Tq], in indices of the keys' axis: its sequence's first key, its own key, and the end of its
// sequence's keys.
struct KeyPlaces {
  Tensor first, own, end;
};
KeyPlaces key_places(const Tensor& q, const JoinedKeys& keys, const OptionalTensor& cu_seqlens);

// Softmax attention over the union of two disjoint sets of keys, from (o, lse) over each.
Tensor merge_attention(const TensorTuple<2>& a, const TensorTuple<2>& b);

}  // namespace cortado
