// Exact softmax attention in chunks of queries and keys with a running maximum (Rabe and Staats 2021), where every
// query sees one interval of keys.
#pragma once

#include "cortado/primitives/window_attention/past.h"

namespace cortado {

struct IntervalOptions {
  // int64 [B,Tq] (or [1,Tq]): query t sees the keys begin .. end-1; begin >= end: none.
  Tensor begin = {}, end = {};
  int64_t chunk = 64;                // queries and keys in a chunk
  std::optional<double> scale = {};  // default K^-1/2
  std::optional<double> softcap = {};
};

// q [B,Tq,H,K], k [B,Tk,Hs,K], v [B,Tk,Hs,V]. Returns o [B,Tq,H,V] (v's type) and lse [B,Tq,H], the log of the sum of
// exp over the keys seen; a query that sees nothing has o = 0 and lse = -inf. Memory O(Tq + Tk), in the backward pass
// too, which computes the scores again; pairs of chunks that see nothing of each other cost nothing.
TensorTuple<2> interval_attention(const Tensor& q, const Tensor& k, const Tensor& v, const IntervalOptions& options);

// Where each query stands on the keys' axis and where its sequence's keys begin and end there: int64 [B|1,Tq].
struct KeyPlaces {
  Tensor first, own, end;
};
KeyPlaces key_places(const Tensor& q, const JoinedKeys& keys, const OptionalTensor& cu_seqlens);

// Softmax over the union of two disjoint sets of keys, from the attention over each.
Tensor merge_attention(const TensorTuple<2>& a, const TensorTuple<2>& b);

}  // namespace cortado
