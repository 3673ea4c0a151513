// The scan as a symmetric form, which is how kernels compute it, forward and backward by one routine.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado::gated {

// Gates are logs, whose sums are exponentiated, or what multiplies the state itself, of any sign and size.
enum class DecayKind { kLogs, kFactors };

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
  bool reverse = false;
  bool want_y = false, want_w = false;
  bool want_rest = false;  // x, v, initial, bonus
  bool want_gate = false;  // with want_rest only
  bool wide_read = false;  // what is read comes in `type`, not in v's
};

// Derivatives of L, float (or double), timed ones [B,T,H,*] with all H heads, g [B,T,H(,K)], beta [B,T,H],
// bonus [B,H,K], initial [B,H,K,V]; and final_state = S_T [B,H,K,V], always.
struct FormOutputs {
  Tensor y, x, w, v, g, beta, bonus, initial, final_state;
};

// --- By the CPU's kernels, the gated scan's and the delta scan's (on_cpu.cpp). ---

// Whether a kernel computes this: float32 sums on the CPU, one of the two reads. `step`: the kernels of one token.
bool kernel_takes(const FormInputs& in, const FormOptions& options, bool step);

// What is wanted of L, with `factor` on its first sum, a missing y or w being 0; with bounds on every packed sequence of
// [1,T,...], the states having a row for each. in.initial and in.final_grad may have fewer heads, each shared by several; for a step the former has
// the state's. Derivatives come in the type of their argument if that has all the heads, else in float32, that of an
// absent y or w in v's; the final state has the state's heads.
FormOutputs evaluate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                               const std::vector<int64_t>* bounds, bool step);

}  // namespace cortado::gated
