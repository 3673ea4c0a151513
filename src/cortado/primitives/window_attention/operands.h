// The inputs of blocked window attention laid out for batched matrix products.
#pragma once

#include <functional>

#include "cortado/primitives/window_attention/blocked.h"

namespace cortado {

// Sizes. `groups` heads of keys and values, each serving `repeat` consecutive query heads: H = groups · repeat.
struct BlockedSizes {
  int64_t batch, queries, keys, groups, repeat, key_size, value_size, extra;
  int64_t heads() const { return groups * repeat; }
  at::ScalarType type;  // of all sums
};
BlockedSizes blocked_sizes(const BlockedInputs& inputs);

// Layouts: "rows" [N, Tq·repeat, *] (N = batch · groups; the query heads of a group are neighbouring rows), "keys"
// [N, Tk, *], "extra" [S, N, E, *] (S = 1, or the sequences of a packed batch).
struct Operands {
  Tensor q;  // rows, times scale (and 1/softcap)
  Tensor k, v;
  Tensor extra_k, extra_v;  // undefined without an extra set
  Tensor extra_hidden;      // bool [S, N, 1, repeat | 1, E], or undefined
  Tensor first_key;         // [N], or undefined
};

// A range of the N = batch · groups problems.
struct Slice {
  int64_t begin, count;
};

Tensor to_rows(const Tensor& x, const BlockedSizes& sizes);                      // [B,Tq,H,...] -> rows
Tensor from_rows(const Tensor& rows, const BlockedSizes& sizes);                 // rows -> [B,Tq,H,...]
Tensor from_keys(const Tensor& keys, const BlockedSizes& sizes);                 // keys -> [B,Tk,groups,*]
Tensor from_extra(const Tensor& extra, const BlockedSizes& sizes, bool packed);  // extra -> [B|S,E,groups,*]
double query_factor(const BlockedInputs& inputs);                                // scale, or scale / softcap

// Runs body(operands, slice) over slices that cover all N problems, on several threads where that pays. Slices are cut
// so that the scores of a block stay in the cache.
void for_each_slice(const BlockedInputs& inputs, const BlockedSizes& sizes, const std::vector<Block>& blocks,
                    const std::function<void(const Operands&, Slice)>& body);

// What the plan may do for these sizes.
PlanLimits plan_limits(const BlockedInputs& inputs, const BlockedSizes& sizes);

}  // namespace cortado
