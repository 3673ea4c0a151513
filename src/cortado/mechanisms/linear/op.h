// normalized_linear: o_t = S_tᵀ φ(q_t) / (φ(q_t)·z_t), S and z the sums of φ(k_s) ⊗ v_s and φ(k_s) (Latte-Macchiato eq.
// 4).
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

struct LinearResult {
  Tensor o;           // [B,T,H,V], v's type
  Tensor state;       // S [B|N,H,K,V]
  Tensor normalizer;  // z [B|N,H,K]

  std::vector<Tensor> tensors() const { return {o, state, normalizer}; }
};

// q, k [B,T,H,K] already mapped by φ, v [B,T,H,V]. eps is added to the denominator; where the sum is 0, o = 0.
// causal = false: sums over the whole sequence, no state taken, zeros returned. state and normalizer together or not at
// all.
LinearResult normalized_linear(const Tensor& q, const Tensor& k, const Tensor& v, bool causal = true, double eps = 0,
                               const OptionalTensor& state = {}, const OptionalTensor& normalizer = {},
                               const OptionalTensor& cu_seqlens = {});

// The definition: the T x T matrix of φ(q_t)·φ(k_s), dense, from zero; `normalize` = divide by its row sums.
Tensor linear_reference(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double eps,
                        bool normalize = true);

}  // namespace cortado
