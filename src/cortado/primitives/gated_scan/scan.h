// What gated_scan, slot_scan and delta_scan have in common as operators: each says in a ScanCall what it computes.
#pragma once

#include "cortado/primitives/gated_scan/form.h"
#include "cortado/primitives/operator.h"

namespace cortado::gated {

// S_t = diag(exp g_t) S_{t-1} + k_t ⊗ v_t; o_t = factor · S_tᵀ q_t, read along the keys, or factor · S_t q_t, along the
// values. With beta, the delta rule, beta_t (v_t - S'ᵀ k_t) is stored instead of v_t, S' = diag(exp g_t) S_{t-1}. With a
// bonus S_{t-1} + diag(bonus) k_t ⊗ v_t is read instead of S_t.
struct ScanCall {
  const char* name;  // of the operator
  Tensor q, k, v;    // [B,T,h,K|V], [B,T,h,K], [B,T,h,V]: h divides `heads` and is broadcast
  bool read_keys;
  double factor;
  at::ScalarType type;         // of the sums
  int64_t heads, state_heads;  // H of the output, and the state's own
  const OptionalTensor &initial_state, &cu_seqlens;
  Tensor g = {};      // [B|1,T,h], [B|1,T,h,K] or undefined; with DecayKind::kFactors what multiplies the state
  Tensor beta = {};   // [B,T,h] or undefined
  Tensor bonus = {};  // [h,K] or undefined
  DecayKind decay = DecayKind::kLogs;
  bool reverse = false;
  bool wide_read = false;  // o comes in `type`, not in v's

  ScanCall(const char* name, const Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, bool read_keys,
           double factor, at::ScalarType type, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens)
      : name(name),
        q(q),
        k(k),
        v(v),
        read_keys(read_keys),
        factor(factor),
        type(type),
        heads(sizes.number('H')),
        state_heads(sizes.number('S')),
        initial_state(initial_state),
        cu_seqlens(cu_seqlens) {}
};

// (o, final_state), by the first implementation that takes the call.
TensorTuple<2> forward(const ScanCall& call);

// The derivatives, with all H heads or those of their argument; g's only where it is wanted. A missing incoming gradient
// is zero.
struct ScanGradients {
  Tensor q, k, v, g, beta, bonus, initial_state;
};
ScanGradients backward(const ScanCall& call, const OptionalTensor& grad_o, const OptionalTensor& grad_state,
                       bool want_gate);

// Their shapes' part of an operator's Meta kernel: sizes of letters K (keys) and V (values).
TensorTuple<2> outputs_meta(const Sizes& sizes, bool read_keys, const Tensor& v, at::ScalarType type);

// Several query heads on one state head (GQA) have a state each, [rows,H,K,V]. The copies are equal: the first one is
// the state, [rows,Hs,K,V].
Tensor first_of_copies(const Tensor& state, int64_t state_heads);

// --- Gates: [B,T,h,K] per key channel, [B,T,h] per head, constant [h,K] or [h]. ---

// g's shape by its dimensions, for Sizes.
std::string_view gate_shape(const OptionalTensor& g);

// [B|1,T,h] or [B|1,T,h,K]: constant gates become timed ones of one batch row; undefined without gates.
Tensor timed_gate(const OptionalTensor& g, int64_t tokens);

// The gradient in g's shape and type, from that of the timed gate with all H heads, [B,T,H(,K)].
Tensor gate_gradient(const Tensor& wide, const Tensor& g);

}  // namespace cortado::gated
