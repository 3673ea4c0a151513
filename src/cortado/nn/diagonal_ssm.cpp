#include "cortado/nn/diagonal_ssm.h"

#include <cmath>

#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {

Discretized discretize(const Tensor& log_step, const Tensor& log_decay, const Tensor& frequency, at::ScalarType type) {
  const Tensor step = log_step.to(type).exp(), decay = log_decay.to(type).exp(), turn = frequency.to(type);
  const Tensor shrink = -decay * step, angle = turn * step;  // ΔΛ
  // e^{ΔΛ} - 1 in parts that do not cancel where ΔΛ is small: cos(y) - 1 = -2 sin²(y/2).
  const Tensor real = shrink.expm1() * angle.cos() - 2 * (angle / 2).sin().square();
  const Tensor imaginary = shrink.exp() * angle.sin();
  return {at::complex(shrink, angle), at::complex(real, imaginary) / at::complex(-decay, turn)};
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

Tensor initial_step_bias(at::IntArrayRef shape) {
  const Tensor step = log_uniform(shape, 0.001, 0.1).exp();
  return step + (-at::expm1(-step)).log();
}

Tensor convolve_reference(const Tensor& kernel, const Tensor& u) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < u.size(1); ++t) {
    outputs.push_back((kernel.narrow(0, 0, t + 1).flip(0) * u.narrow(1, 0, t + 1)).sum(1));
  }
  return at::stack(outputs, 1);
}

}  // namespace cortado
