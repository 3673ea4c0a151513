// Attention between a sequence's tokens and a few latents, shared by `luna`, `linformer` and `perceiver`.
#pragma once

#include <cmath>

#include "cortado/mechanisms/shared/heads.h"
#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {

// Latents attend to a sequence: Y_l = Σ_s softmax_s(q_l·k_s/√d) v_s. q [H,L,d], equal for all sequences; k, v
// [B,T,H,d]. Returns [B|N,H,L,d] in float32 (float64 for float64). An empty sequence gives 0.
inline Tensor latents_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch) {
  const NoAutocast in_float32;
  const auto type = accumulation_type({q, k, v});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor theta = at::einsum("bthd,hld->bthl", {k.to(type), q.to(type)}) * scale;
  return sequence_means(theta, v, batch.cu_seqlens).means;
}

// Tokens attend to the latents of their sequence: Σ_l softmax_l(q_t·k_l/√d) v_l. q [B,T,H,d]; k, v [B|N,H,L,d]. Returns
// [B,T,H,d] in q's type.
inline Tensor tokens_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch) {
  const NoAutocast in_float32;
  const auto type = accumulation_type({q, k, v});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor scores = read_sequences(q.to(type) * scale, k.to(type).transpose(2, 3), batch.cu_seqlens);
  return read_sequences(at::softmax(scores, -1), v.to(type), batch.cu_seqlens).to(q.scalar_type());
}

// Splits [L,D] or [N,L,D] into heads, [H,L,d] or [N,H,L,d]; merge_latent_heads is the inverse.
inline Tensor latent_heads(const Tensor& x, int64_t heads) { return split_heads(x, heads).transpose(-3, -2); }
inline Tensor merge_latent_heads(const Tensor& x) { return x.transpose(-3, -2).flatten(-2); }

// Softmax attention over the whole sequence, for definitions. Dense: q [B,Tq,H,d], k, v [B,Tk,H,d].
inline Tensor attention_reference(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = at::einsum("bthd,bshd->bhts", {q, k}) / std::sqrt(static_cast<double>(q.size(3)));
  return at::einsum("bhts,bshd->bthd", {at::softmax(scores, -1), v});
}

}  // namespace cortado
