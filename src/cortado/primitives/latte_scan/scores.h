// latte_scores: attention scores of slots, before the softmax over the slots. Each slot is filled by a softmax over
// time.
#pragma once

#include "cortado/primitives/latte_scan/op.h"

namespace cortado {

// Whether there are kernels for this: only on a GPU, for bfloat16 tensors with one head count and widths that are
// multiples of 8 up to 128. v: the values that latte_scan will read with the same logits.
bool latte_scores_take(const Tensor& q, const Tensor& key_logits, const Tensor& k, const Tensor& v);

// Returns o_tl = q_t . Σ_{s<=t} softmax_{s<=t}(θ_sl) k_s, float32 [B,T,H,L], for q, k [B,T,H,K] and key logits θ
// [B,T,H,L]. The state is latte_scan's with k as values. Fails if there are no kernels.
LatteResult latte_scores(const Tensor& q, const Tensor& key_logits, const Tensor& k, const LatteState& start = {},
                         const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
