#include "cortado/nn/positions.h"

#include <cmath>

namespace cortado {

Tensor sinusoidal_positions(const Tensor& positions, int64_t dim, at::ScalarType type) {
  const bool same_rows = positions.size(0) > 1 && positions.stride(0) == 0;
  const Tensor rows = same_rows ? positions.narrow(0, 0, 1) : positions;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(positions.device());
  const Tensor exponent = at::arange(0, dim, 2, options).mul_(-std::log(1e4) / static_cast<double>(dim));
  const Tensor angles = rows.to(at::kDouble).unsqueeze(-1) * exponent.exp_();
  const Tensor pairs = at::stack({angles.sin(), angles.cos()}, -1).flatten(-2);
  return pairs.narrow(-1, 0, dim).to(type);
}

}  // namespace cortado
