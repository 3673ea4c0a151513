// gated_slot: attention to M slots; every token is written to all of them (GSA).
#pragma once

#include "cortado/mechanisms/shared/slots.h"

namespace cortado {

// K~_t = diag(exp g_t) K~_{t-1} + s_t ⊗ k_t, V~ likewise; o_t = V~_tᵀ softmax(K~_t q_t · scale). q, k [B,T,H,K], v
// [B,T,H,V], s and g [B,T,H,M]; g holds natural logs <= 0. scale defaults to K^-1/2. Give key_state and value_state
// both or neither. Throws InputError for shapes that do not fit.
SlotResult gated_slot(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                      std::optional<double> scale = {}, const OptionalTensor& key_state = {},
                      const OptionalTensor& value_state = {}, const OptionalTensor& cu_seqlens = {});

// The definition: token by token, dense, from the zero state; differentiable by autograd.
Tensor gated_slot_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                            double scale);

}  // namespace cortado
