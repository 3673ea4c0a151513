// normalized_linear: o_t = S_tᵀ φ(q_t) / (φ(q_t)·z_t), with S = Σ_s φ(k_s) ⊗ v_s and z = Σ_s φ(k_s) (Latte-Macchiato
// eq. 4).
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

struct LinearResult {
  Tensor o;           // [B,T,H,V], v's type
  Tensor state;       // S [B|N,H,K,V]
  Tensor normalizer;  // z [B|N,H,K]

  std::vector<Tensor> tensors() const { return {o, state, normalizer}; }
};

// q, k [B,T,H,K] are mapped by φ already; v [B,T,H,V]. eps is added to the denominator; o = 0 where the denominator is
// 0. With causal = false the sums run over the whole sequence; no state is accepted, and the returned state is zero.
// Give state and normalizer both or neither. Throws InputError for shapes that do not fit.
LinearResult normalized_linear(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = true, double eps = 0,
                               const OptionalTensor& state = {}, const OptionalTensor& normalizer = {},
                               const OptionalTensor& cu_seqlens = {});

// The definition: the T x T matrix φ(q_t)·φ(k_s), dense, from the zero state, divided by its row sums if `normalize`.
Tensor linear_reference(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double eps,
                        bool normalize = true);

}  // namespace cortado
