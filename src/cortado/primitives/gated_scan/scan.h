// Shared by the operators gated_scan, slot_scan and delta_scan: each describes its computation by a ScanCall.
#pragma once

#include "cortado/primitives/gated_scan/form.h"
#include "cortado/primitives/operator.h"

namespace cortado::gated {

// S_t = diag(exp g_t) S_{t-1} + k_t ⊗ v_t. Reads along the keys, o_t = factor · S_tᵀ q_t, or along the values, o_t =
// factor · S_t q_t. With beta (delta rule) beta_t (v_t - S'ᵀ k_t) is stored instead of v_t, with S' = diag(exp g_t)
// S_{t-1}. With a bonus, S_{t-1} + diag(bonus) k_t ⊗ v_t is read instead of S_t.
struct ScanCall {
  const char* name;  // the operator's
  Tensor q, k, v;    // [B,T,h,K|V], [B,T,h,K], [B,T,h,V]: h divides `heads` and is broadcast
  bool read_keys = true;
  double factor;
  at::ScalarType type;         // of the sums
  int64_t heads, state_heads;  // H of the output; the state's head count
  const OptionalTensor &initial_state, &cu_seqlens;
  Tensor g = {};      // [B|1,T,h], [B|1,T,h,K] or undefined; with kFactors the factors themselves
  Tensor beta = {};   // [B,T,h] or undefined
  Tensor bonus = {};  // [h,K] or undefined
  DecayKind decay = DecayKind::kLogs;
  bool reverse = false;
  bool wide_read = false;  // o has `type` instead of v's
};

// Computes (o, final_state) by the first implementation that takes the call.
TensorTuple<2> forward(const ScanCall& call);

// Returns the derivatives, with all H heads or those of their argument; g's only if `want_gate`. An absent incoming
// gradient is zero.
struct ScanGradients {
  Tensor q, k, v, g, beta, bonus, initial_state;
};
ScanGradients backward(const ScanCall& call, const OptionalTensor& grad_o, const OptionalTensor& grad_state,
                       bool want_gate);

// Shapes of the outputs for an operator's Meta kernel; `sizes` has K (keys) and V (values).
TensorTuple<2> outputs_meta(const Sizes& sizes, bool read_keys, const Tensor& v, at::ScalarType type);

// With several query heads per state head (GQA) each query head has a copy of the state, [rows,H,K,V]. The copies are
// equal; returns the first of each group, [rows,Hs,K,V].
Tensor first_of_copies(const Tensor& state, int64_t state_heads);

// --- Gates: [B,T,h,K] per key channel, [B,T,h] per head, constant [h,K] or [h]. ---

// g's shape for Sizes, chosen by its number of dimensions.
std::string_view gate_shape(const OptionalTensor& g);

// Returns [B|1,T,h] or [B|1,T,h,K]: a constant gate becomes a timed one with batch dimension 1; undefined without
// gates.
Tensor timed_gate(const OptionalTensor& g, int64_t tokens);

// Returns the gradient in g's shape and type, given that of the timed gate with all H heads, [B,T,H(,K)].
Tensor gate_gradient(const Tensor& wide, const Tensor& g);

}  // namespace cortado::gated
