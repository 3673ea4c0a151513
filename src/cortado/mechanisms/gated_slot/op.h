// gated_slot: attention to M slots that every token is written to (GSA).
#pragma once

#include "cortado/mechanisms/shared/slots.h"

namespace cortado {

// K~_t = diag(exp g_t) K~_{t-1} + s_t ⊗ k_t, V~ likewise. q, k [B,T,H,K], v [B,T,H,V], s, g [B,T,H,M], g natural logs
// <= 0. scale defaults to K^-1/2. key_state and value_state together or not at all.
SlotResult gated_slot(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                      std::optional<double> scale = {}, const OptionalTensor& key_state = {},
                      const OptionalTensor& value_state = {}, const OptionalTensor& cu_seqlens = {});

// The definition, token by token, dense, from zero; differentiable by autograd.
Tensor gated_slot_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                            double scale);

}  // namespace cortado
