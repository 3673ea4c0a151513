// latte_scores: what attention to slots that softmaxes over time fill scores them with, before its softmax over the slots.
#pragma once

#include "cortado/primitives/latte_scan/op.h"

namespace cortado {

// Whether there are kernels for this, on a GPU alone: bfloat16 tensors with as many heads everywhere, widths that are
// multiples of 8 up to 128. v: the values that latte_scan is to read with the same logits.
bool latte_scores_take(const Tensor& q, const Tensor& key_logits, const Tensor& k, const Tensor& v);

// o_tl = q_t . Σ_{s<=t} softmax_{s<=t}(θ_sl) k_s of q, k [B,T,H,K] and key logits θ [B,T,H,L]: float32 [B,T,H,L]; the
// state is latte_scan's, of k. Fails where there are no kernels.
LatteResult latte_scores(const Tensor& q, const Tensor& key_logits, const Tensor& k, const LatteState& start = {},
                         const OptionalTensor& cu_seqlens = {});

}  // namespace cortado
