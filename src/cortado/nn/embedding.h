// Token embeddings.
#pragma once

#include "cortado/nn/matrix.h"

namespace cortado {

// int64 indices [...] -> [..., dim]. weight [count, dim] is initialised N(0, 1/dim), so that a tied head starts with
// logits of order one. The result is multiplied by `scale` in its own type (Gemma: √dim).
class Embedding : public MatrixModule {
 public:
  Embedding(int64_t count, int64_t dim, double scale = 1.0)
      : MatrixModule("Embedding", count, dim, Role::kEmbedding), scale_(scale) {}

  // `type`: that of the model's activations.
  Tensor forward(const Tensor& indices, at::ScalarType type) const {
    const Tensor x = rows(indices, type);
    return scale_ == 1.0 ? x : x * at::scalar_tensor(scale_, x.options());
  }

  // The tied head: x [..., dim] -> [..., count].
  Tensor logits(const Tensor& x, const OptionalTensor& bias) const { return multiply(x, bias); }

 private:
  Tensor rows(const Tensor& indices, at::ScalarType type) const {
    if (instead()) return instead()(indices).to(type);
    return packed() ? packed()->rows(indices, type) : at::embedding(weight, indices).to(type);
  }

  double scale_;
};

}  // namespace cortado
