#include "cortado/nn/diagonal_ssm.h"

#include <cmath>

#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {

Discretized discretize(const Tensor& log_step, const Tensor& log_decay, const Tensor& frequency, at::ScalarType type) {
  const Tensor lambda = at::complex(-log_decay.to(at::kDouble).exp(), frequency.to(at::kDouble));
  const Tensor log_a = lambda * log_step.to(at::kDouble).exp();
  const auto complex = type == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  return {log_a.to(complex), ((log_a.exp() - 1) / lambda).to(complex)};
}

Tensor complex_scan(const Tensor& log_a, const Tensor& b, const Batch& batch, SequenceState* state,
                    const std::string& name, bool reverse) {
  std::optional<Tensor> start;
  if (state) start = at::view_as_complex(state->at(name));
  auto [h, last] =
      elementwise_scan(log_a.expand(b.sizes()), b.to(log_a.scalar_type()), start, batch.cu_seqlens, reverse);
  if (state) state->at(name) = at::view_as_real(last);
  return h;
}

Tensor log_uniform(at::IntArrayRef shape, double low, double high) {
  return at::empty(shape).uniform_(std::log(low), std::log(high));
}

Tensor convolve_reference(const Tensor& kernel, const Tensor& u) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < u.size(1); ++t) {
    outputs.push_back((kernel.narrow(0, 0, t + 1).flip(0) * u.narrow(1, 0, t + 1)).sum(1));
  }
  return at::stack(outputs, 1);
}

}  // namespace cortado
