// Attention between the tokens of a sequence and a few latents: what `luna`, `linformer` and `perceiver` are made of.
#pragma once

#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

// Latents read a sequence: Y_l = Σ_s softmax_s(q_l·k_s/√d) v_s. q [H,L,d] (the same for every sequence), k, v [B,T,H,d]
// -> [B|N,H,L,d], float32 (float64 for float64); an empty sequence gives 0.
Tensor latents_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch);

// Tokens read latents: Σ_l softmax_l(q_t·k_l/√d) v_l. q [B,T,H,d]; k, v [B|N,H,L,d], those of the token's sequence.
// -> [B,T,H,d], q's type.
Tensor tokens_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch);

// [L,D] or [N,L,D] -> [H,L,d] or [N,H,L,d], and back.
inline Tensor latent_heads(const Tensor& x, int64_t heads) { return split_heads(x, heads).transpose(-3, -2); }
inline Tensor merge_latent_heads(const Tensor& x) { return x.transpose(-3, -2).flatten(-2); }

// Whole-sequence softmax attention for definitions, dense: q [B,Tq,H,d], k, v [B,Tk,H,d].
Tensor attention_reference(const Tensor& q, const Tensor& k, const Tensor& v);

}  // namespace cortado
