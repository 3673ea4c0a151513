// The scan by ATen, in chunks, for every type and device. Memory is O(T).
#pragma once

#include "cortado/primitives/operator.h"
#include "cortado/primitives/recomputed.h"

namespace cortado::dplr {

// The inputs of a computation, in this order.
enum Input { kQuery, kKeys, kValues, kReads, kWrites, kGates, kState };

struct Call {
  int64_t heads, state_heads;  // of the output and of the state
  int64_t keys, values;        // K, V
  double factor;               // of the output
  at::ScalarType type;         // of the sums
};

// Returns the scan as a function of its inputs (heads not yet expanded; the state may be undefined) that gives o
// [B,T,H,V] and the last state, in the type of the sums. `bounds` must outlive it.
Computation by_aten(const Call& call, const Bounds& bounds);

}  // namespace cortado::dplr
