// The gates of the matrix-valued scans in their shapes: [B,T,h,K] per key channel, [B,T,h] per head, constant [h,K] or
// [h]. And the states' heads, where there are more queries than states.
#pragma once

#include "cortado/primitives/common.h"

namespace cortado {

// Checks g's shape and returns its h. Works on symbolic shapes.
c10::SymInt gate_heads(std::string_view op, const Tensor& g, const c10::SymInt& batch, const c10::SymInt& tokens,
                       const c10::SymInt& keys);

// [B|1,T,h] or [B|1,T,h,K]: constant gates become timed ones of one batch row; undefined without gates.
Tensor timed_gate(const OptionalTensor& g, int64_t tokens);

// exp of a gate of any shape at the only token, to multiply a state with: [B|1,H,K|1,1].
Tensor token_decay(const Tensor& g, int64_t heads, at::ScalarType type);

// The gradient in g's shape and type, from that of the timed gate with all H heads, [B,T,H(,K)].
Tensor gate_gradient(const Tensor& wide, const Tensor& g);

// Several query heads on one state head (GQA): the state is computed for each of them. The copies are equal and the
// first is the result [rows,Hs,K,V]; its gradient is spread back to [rows,H,K,V], 0 for the others.
Tensor first_of_copies(const Tensor& state, int64_t state_heads);
Tensor spread_to_copies(const Tensor& gradient, int64_t heads);

}  // namespace cortado
