// abc: attention with bounded-memory control. Each of M slots holds a softmax-weighted mean over time of keys and one
// of values.
#pragma once

#include "cortado/mechanisms/shared/slots.h"

namespace cortado {

// The state: Σ_s exp(s_s - m) k_s [B|N,H,M,K], Σ_s exp(s_s - m) v_s [B|N,H,M,V], Σ_s exp(s_s - m) [B|N,H,M], and the
// running maximum m [B|N,H,M], which starts at -inf. Give all four or none: without the normaliser a sequence cannot be
// continued.
struct AbcState {
  OptionalTensor key_state, value_state, normalizer, maximum;
};

struct AbcResult {
  Tensor o;  // [B,T,H,V], v's type
  Tensor key_state, value_state, normalizer, maximum;

  std::vector<Tensor> tensors() const { return {o, key_state, value_state, normalizer, maximum}; }
};

// q, k [B,T,H,K], v [B,T,H,V], logits s [B,T,H,M] (not clamped here). scale defaults to K^-1/2. A slot whose logits
// have all been -inf so far holds zeros. Throws InputError for shapes that do not fit and for an incomplete state.
AbcResult abc(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, std::optional<double> scale = {},
              const AbcState& start = {}, const OptionalTensor& cu_seqlens = {});

// The definition: softmax_{s<=t} for every t and slot, dense, from the zero state; differentiable by autograd.
Tensor abc_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, double scale);

}  // namespace cortado
