// The chunked form of the gated scan, forward and backward: one routine.
#pragma once

#include <ATen/ATen.h>

#include "cortado/primitives/gated_scan/decay.h"

namespace cortado::gated {

using at::Tensor;

// The scan as a form, linear in each of its arguments except the gates:
//   L = Σ_t y_tᵀ S_t w_t + <S_T, final_grad>,   S_t = diag(exp g_t) S_{t-1} + x_t ⊗ v_t.
// The key read is ∂L/∂w with y = q, the value read ∂L/∂y with w = q, and the gradients of either are the other
// derivatives of the same L, the incoming gradient standing in the place of w or y.
// With beta it is the delta scan's, read along the keys: what is stored is beta_t (v_t - S'ᵀ x_t), S' = diag(exp g_t)
// S_{t-1}, instead of v_t.
struct FormInputs {
  Tensor y, x;        // [B,T,h,K]
  Tensor w, v;        // [B,T,h,V]
  Tensor g;           // [B|1,T,h], [B|1,T,h,K] or undefined; of kind kFactors: [B|1,T,h,K], what multiplies the state
  Tensor beta;        // [B,T,h] or undefined
  Tensor bonus;       // [h,K] or undefined: S_{t-1} + diag(bonus) x_t ⊗ v_t is read instead of S_t
  Tensor initial;     // [B,H,K,V] or undefined = 0
  Tensor final_grad;  // [B,H,K,V] or undefined = 0
};

// The number of heads h of each timed input divides H and is broadcast to it (as repeat_interleave).
// y and w may be undefined where nothing wanted depends on them.
struct FormOptions {
  int64_t heads;        // H
  at::ScalarType type;  // to accumulate in
  DecayKind decay = DecayKind::kLogs;
  int64_t chunk = 64;  // largest chunk, a power of two
  // Long inputs are worked on in segments of about this many elements (B·T·H·max(K,V)), so that the temporary memory
  // does not grow with T.
  int64_t segment_elements = int64_t{1} << 22;
  bool reverse = false;
  bool want_y = false, want_w = false;
  bool want_rest = false;  // x, v, initial, bonus
  bool want_gate = false;  // with want_rest only
};

// Derivatives of L, float (or double), timed ones [B,T,H,*] with all H heads, g [B,T,H(,K)], beta [B,T,H],
// bonus [B,H,K], initial [B,H,K,V]; and final_state = S_T [B,H,K,V], always.
struct FormOutputs {
  Tensor y, x, w, v, g, beta, bonus, initial, final_state;
};

FormOutputs differentiate_form(const FormInputs& in, const FormOptions& options);

// The same on every packed sequence of [1,T,...], the states having a row a sequence. `bounds` as sequence_bounds.
FormOutputs differentiate_sequences(const FormInputs& in, const FormOptions& options,
                                    const std::vector<int64_t>& bounds);

}  // namespace cortado::gated
