#include "cortado/mechanisms/mamba2/one_token.h"

#include "cortado/mechanisms/shared/one_token.h"
#include "cortado/primitives/gated_scan/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

// Plain memory of a call, each [rows, ...].
struct Numbers {
  float *convolved, *values, *decays;  // [mixed], [inner], [H]

  Numbers(const Mamba2Shape& sizes, int64_t rows)
      : convolved(one_token::scratch(rows * (sizes.mixed() + sizes.inner + sizes.heads))),
        values(convolved + rows * sizes.mixed()),
        decays(values + rows * sizes.inner) {}
};

// Per head Δ = softplus(step + bias), but at least step_min; v = Δ x and g = -exp(A_log) Δ.
void discretize(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics, const float* step, const float* x,
                float* values, float* decays) {
  const auto *bias = dynamics.step_bias.const_data_ptr<float>(), *a_log = dynamics.a_log.const_data_ptr<float>();
  const int64_t width = sizes.inner / sizes.heads;
  const auto least = static_cast<float>(sizes.step_min);
  for (int64_t head = 0; head < sizes.heads; ++head) {
    const float delta = std::max(one_token::softplus(step[head] + bias[head]), least);
    decays[head] = -std::exp(a_log[head]) * delta;
    for (int64_t i = head * width; i < (head + 1) * width; ++i) values[i] = delta * x[i];
  }
}

}  // namespace

bool mamba2_takes_one_token(const Mamba2Shape& sizes) {
  return sizes.state <= gated::kStepWidth && sizes.inner / sizes.heads <= gated::kStepWidth;
}

Tensor mamba2_one_token(const Mamba2Shape& sizes, const Mamba2Dynamics& dynamics, const ShortConvolution& convolution,
                        const Tensor& projected, SequenceState& state) {
  const int64_t rows = projected.size(0), row = projected.size(2), mixed = sizes.mixed(), inner = sizes.inner;
  const int64_t heads = sizes.heads, width = inner / heads, repeat = heads / sizes.groups;
  const Numbers room(sizes, rows);
  const auto* in = projected.const_data_ptr<float>();
  convolution.forward_one(in + inner, row, state, "conv", room.convolved);
  for (int64_t n = 0; n < rows; ++n) {
    discretize(sizes, dynamics, in + n * row + inner + mixed, room.convolved + n * mixed, room.values + n * inner,
               room.decays + n * heads);
  }
  Tensor& start = state.at("scan_state");
  const Tensor y = at::empty({rows, 1, inner}, projected.options()),
               last = kernels::room(start.sizes(), start.options());
  auto* o = y.data_ptr<float>();
  float* keys = room.convolved + inner;
  gated::ScanKernel scan{.rows = rows, .tokens = 1, .heads = heads, .keys = sizes.state, .values = width};
  scan.x = {.data = keys, .row = mixed, .head = sizes.state, .repeat = repeat};
  scan.y = {.data = keys + sizes.groups * sizes.state, .row = mixed, .head = sizes.state, .repeat = repeat};
  scan.v = {.data = room.values, .row = inner, .head = width};
  scan.g = {.data = room.decays, .row = heads, .head = 1};
  scan.initial = kernels::states(start, heads);
  scan.final_state = kernels::states(last, heads);
  scan.dw = {.data = o, .row = inner, .head = width};
  gated::run_step(scan, kernels::parallel(rows * inner * sizes.state));
  start = last;
  const auto* skip = dynamics.skip.const_data_ptr<float>();
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t i = 0; i < inner; ++i) o[n * inner + i] += skip[i / width] * room.convolved[n * mixed + i];
  }
  return y;
}

}  // namespace cortado
