#include "cortado/nn/embedding.h"

#include <cmath>

namespace cortado {

Tensor Embedding::forward(const Tensor& indices, at::ScalarType type) const {
  const Tensor x = int8() ? int8()->rows(indices, type) : at::embedding(weight, indices).to(type);
  return scaled_ ? x * at::scalar_tensor(std::sqrt(static_cast<double>(weight.size(1))), x.options()) : x;
}

}  // namespace cortado
