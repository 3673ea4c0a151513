// time_softmax: the keys, gates and normaliser with which a gated scan computes a softmax over time.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

// With the running maximum m_t = max(m_{t-1}, θ_t), p(s|t) = exp(θ_s - m_t) / α_t and Σ_{s<=t} p(s|t) v_s = S_t / α_t.
// Here S_t = exp(gate_t) S_{t-1} + keys_t ⊗ v_t, and α_t is S_t for v = 1. The quotient does not depend on m, so m and
// the gate have no gradient.
struct TimeSoftmax {
  Tensor keys, gate;                     // exp(θ_t - m_t) in [0, 1], m_{t-1} - m_t <= 0: [B,T,H,L]
  Tensor maximum;                        // m_t; 0 where m_t is -inf
  Tensor normalizer;                     // α_t [B,T,H,L]; 0 while every θ so far is -inf
  Tensor last_normalizer, last_maximum;  // [B|N,H,L]
};

// theta [B,T,H,L] float32 or float64. normalizer and maximum [B|N,H,L] continue an earlier call; give both or neither.
TimeSoftmax time_softmax(const Tensor& theta, const OptionalTensor& normalizer = {}, const OptionalTensor& maximum = {},
                         const OptionalTensor& cu_seqlens = {});

// The definition, token by token; differentiable by autograd.
TimeSoftmax time_softmax_reference(const Tensor& theta, const OptionalTensor& normalizer = {},
                                   const OptionalTensor& maximum = {}, const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
