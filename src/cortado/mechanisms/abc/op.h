// abc: attention with bounded-memory control. Each of M slots holds the softmax-weighted mean over time of keys and
// values.
#pragma once

#include "cortado/mechanisms/shared/slots.h"

namespace cortado {

// Σ_s exp(s_s - m) k_s [B|N,H,M,K], the same of v [B|N,H,M,V], Σ_s exp(s_s - m) [B|N,H,M], and the running maximum m
// [B|N,H,M], -inf at the start. Together or not at all: without the normaliser nothing can go on from here.
struct AbcState {
  OptionalTensor key_state, value_state, normalizer, maximum;
};

struct AbcResult {
  Tensor o;  // [B,T,H,V], v's type
  Tensor key_state, value_state, normalizer, maximum;

  std::vector<Tensor> tensors() const { return {o, key_state, value_state, normalizer, maximum}; }
};

// q, k [B,T,H,K], v [B,T,H,V], logits s [B,T,H,M] (not clamped here). scale defaults to K^-1/2. A slot of which every
// logit so far is -inf holds zeros.
AbcResult abc(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, std::optional<double> scale = {},
              const AbcState& start = {}, const OptionalTensor& cu_seqlens = {});

// The definition: softmax_{s<=t} written out for every t and slot, dense, from zero; differentiable by autograd.
Tensor abc_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, double scale);

}  // namespace cortado
