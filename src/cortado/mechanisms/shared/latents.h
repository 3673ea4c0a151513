// Attention between the tokens of a sequence and a few latents: what `luna`, `linformer` and `perceiver` are made of.
#pragma once

#include <cmath>

#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {

// Latents read a sequence: Y_l = Σ_s softmax_s(q_l·k_s/√d) v_s. q [H,L,d] (the same for every sequence), k, v [B,T,H,d]
// -> [B|N,H,L,d], float32 (float64 for float64); an empty sequence gives 0.
inline Tensor latents_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch) {
  const NoAutocast in_float32;
  const auto type = accumulation_type({q, k, v});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor theta = at::einsum("bthd,hld->bthl", {k.to(type), q.to(type)}) * scale;
  return sequence_means(theta, v, batch.cu_seqlens).means;
}

// Tokens read latents: Σ_l softmax_l(q_t·k_l/√d) v_l. q [B,T,H,d]; k, v [B|N,H,L,d], those of the token's sequence.
// -> [B,T,H,d], q's type.
inline Tensor tokens_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch) {
  const NoAutocast in_float32;
  const auto type = accumulation_type({q, k, v});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor scores = read_sequences(q.to(type) * scale, k.to(type).transpose(2, 3), batch.cu_seqlens);
  return read_sequences(at::softmax(scores, -1), v.to(type), batch.cu_seqlens).to(q.scalar_type());
}

// [L,D] or [N,L,D] -> [H,L,d] or [N,H,L,d], and back.
inline Tensor latent_heads(const Tensor& x, int64_t heads) { return split_heads(x, heads).transpose(-3, -2); }
inline Tensor merge_latent_heads(const Tensor& x) { return x.transpose(-3, -2).flatten(-2); }

// Whole-sequence softmax attention for definitions, dense: q [B,Tq,H,d], k, v [B,Tk,H,d].
inline Tensor attention_reference(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = at::einsum("bthd,bshd->bhts", {q, k}) / std::sqrt(static_cast<double>(q.size(3)));
  return at::einsum("bhts,bshd->bthd", {at::softmax(scores, -1), v});
}

}  // namespace cortado
