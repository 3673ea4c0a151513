// The scan as a symmetric form L. Kernels evaluate it for the forward and for the backward by one routine.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado::gated {

// kLogs: gates are logs and their sums are exponentiated. kFactors: gates multiply the state directly; any sign and
// size.
enum class DecayKind { kLogs, kFactors };

// The form is linear in each argument except the gates:
//   L = Σ_t y_tᵀ S_t w_t + <S_T, final_grad>,   S_t = diag(exp g_t) S_{t-1} + x_t ⊗ v_t.
// A read along the keys is ∂L/∂w with y = q; a read along the values is ∂L/∂y with w = q. The gradients of either read
// are the other derivatives of L, with the incoming gradient as w or y. With beta the form is the delta scan's, read
// along the keys: instead of v_t it stores beta_t (v_t - S'ᵀ x_t), with S' = diag(exp g_t) S_{t-1}.
struct FormInputs {
  Tensor y, x;        // [B,T,h,K]
  Tensor w, v;        // [B,T,h,V]
  Tensor g;           // [B|1,T,h], [B|1,T,h,K] or undefined; kFactors: [B|1,T,h,K], the factors themselves
  Tensor beta;        // [B,T,h] or undefined
  Tensor bonus;       // [h,K] or undefined: S_{t-1} + diag(bonus) x_t ⊗ v_t is read instead of S_t
  Tensor initial;     // [B,H,K,V] or undefined = 0
  Tensor final_grad;  // [B,H,K,V] or undefined = 0
};

// The head count h of each timed input divides H; heads are broadcast to H (as repeat_interleave). y and w may be
// undefined if no wanted result depends on them.
struct FormOptions {
  int64_t heads;        // H
  at::ScalarType type;  // of the sums
  DecayKind decay = DecayKind::kLogs;
  bool reverse = false;
  bool want_y = false, want_w = false;
  bool want_rest = false;  // x, v, initial, bonus
  bool want_gate = false;  // with want_rest only
  bool wide_read = false;  // reads come in `type` instead of v's type
};

// Derivatives of L in float32 (or float64) with all H heads: timed ones [B,T,H,*], g [B,T,H(,K)], beta [B,T,H], bonus
// [B,H,K], initial [B,H,K,V]; and always final_state = S_T [B,H,K,V].
struct FormOutputs {
  Tensor y, x, w, v, g, beta, bonus, initial, final_state;
};

// --- By the CPU's kernels, the gated scan's and the delta scan's (on_cpu.cpp). ---

// Whether a CPU kernel computes this: float32 sums, one of the two reads. `step`: the single-token kernels.
bool kernel_takes(const FormInputs& in, const FormOptions& options, bool step);

// Computes the wanted derivatives of L with `factor` on its first sum; an undefined y or w is 0. With bounds it
// computes every packed sequence of [1,T,...]; states then have one row per sequence. in.initial and in.final_grad may
// have fewer heads, each shared by several; for a step in.initial has the state's heads. A derivative has its
// argument's type if that argument has all heads, else float32; that of an absent y or w has v's type. The final state
// has the state's heads.
FormOutputs evaluate_by_kernel(const FormInputs& in, const FormOptions& options, double factor,
                               const std::vector<int64_t>* bounds, bool step);

}  // namespace cortado::gated
