#include "cortado/mechanisms/shared/latents.h"

#include <cmath>

#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {

Tensor latents_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch) {
  const NoAutocast in_float32;
  const auto type = accumulation_type({q, k, v});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor theta = at::einsum("bthd,hld->bthl", {k.to(type), q.to(type)}) * scale;
  return sequence_means(theta, v, batch.cu_seqlens).means;
}

Tensor tokens_read(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch) {
  const NoAutocast in_float32;
  const auto type = accumulation_type({q, k, v});
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor scores = read_sequences(q.to(type) * scale, k.to(type).transpose(2, 3), batch.cu_seqlens);
  return read_sequences(at::softmax(scores, -1), v.to(type), batch.cu_seqlens).to(q.scalar_type());
}

Tensor attention_reference(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = at::einsum("bthd,bshd->bhts", {q, k}) / std::sqrt(static_cast<double>(q.size(3)));
  return at::einsum("bhts,bshd->bthd", {at::softmax(scores, -1), v});
}

}  // namespace cortado
