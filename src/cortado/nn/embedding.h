// Token embeddings.
#pragma once

#include <cmath>

#include "cortado/nn/matrix.h"

namespace cortado {

// int64 indices [...] -> [..., dim]; weight [count, dim], initialised N(0, 1/dim), so that a tied head starts with
// logits of order one. `scaled`: the result is multiplied by √dim (in the weights' type, as Gemma does).
class Embedding : public MatrixModule {
 public:
  Embedding(int64_t count, int64_t dim, bool scaled = false) : MatrixModule("Embedding", count, dim), scaled_(scaled) {}

  // Of type `type`, that of the model's activations.
  Tensor forward(const Tensor& indices, at::ScalarType type) const {
    const Tensor x = int8() ? int8()->rows(indices, type) : at::embedding(weight, indices).to(type);
    return scaled_ ? x * at::scalar_tensor(std::sqrt(static_cast<double>(weight.size(1))), x.options()) : x;
  }

  // As a tied head: x [..., dim] -> [..., count].
  Tensor logits(const Tensor& x, const OptionalTensor& bias) const { return multiply(x, bias); }

 private:
  bool scaled_;
};

}  // namespace cortado
