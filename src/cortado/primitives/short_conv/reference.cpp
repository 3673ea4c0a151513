// The definition, tap by tap. The judge of op.cpp.
#include "cortado/primitives/common.h"
#include "cortado/primitives/short_conv/op.h"

namespace cortado {
namespace {

// x [B,T,D], weight [D,W], tail [B,W-1,D], all of one type.
std::tuple<Tensor, Tensor> dense(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                 std::string_view activation, const Tensor& tail) {
  const int64_t taps = weight.size(1);
  const Tensor inputs = at::cat({tail, x}, 1);  // x_t stands at t + W - 1
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < x.size(1); ++t) {
    Tensor y = at::zeros_like(x.select(1, t));
    for (int64_t i = 0; i < taps; ++i) y = y + weight.select(1, taps - 1 - i) * inputs.select(1, t + taps - 1 - i);
    if (bias) y = y + *bias;
    outputs.push_back(activation == "silu" ? y * at::sigmoid(y) : y);
  }
  const Tensor y = outputs.empty() ? x : at::stack(outputs, 1);
  return {y, inputs.narrow(1, x.size(1), taps - 1)};
}

}  // namespace

std::tuple<Tensor, Tensor> short_conv_reference(const Tensor& x, const Tensor& weight,
                                                const std::optional<Tensor>& bias, std::string_view activation,
                                                const std::optional<Tensor>& initial_state,
                                                const std::optional<Tensor>& cu_seqlens) {
  const auto type = accumulation_type({x, weight, bias, initial_state});
  const Tensor inputs = x.to(type), taps = weight.to(type);
  const std::optional<Tensor> offset = bias ? std::optional<Tensor>(bias->to(type)) : std::nullopt;
  std::vector<int64_t> bounds{0, x.size(1)};
  if (cu_seqlens) bounds = sequence_bounds("short_conv", *cu_seqlens, x.size(1));
  const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1, rows = cu_seqlens ? sequences : x.size(0);
  const Tensor tails =
      initial_state ? initial_state->to(type) : at::zeros({rows, weight.size(1) - 1, x.size(2)}, inputs.options());
  std::vector<Tensor> outputs, states;
  for (int64_t n = 0; n < sequences; ++n) {
    const Tensor tail = cu_seqlens ? tails.narrow(0, n, 1) : tails;
    const auto [y, state] = dense(inputs.slice(1, bounds[n], bounds[n + 1]), taps, offset, activation, tail);
    outputs.push_back(y);
    states.push_back(state);
  }
  if (outputs.empty()) return {x, tails};
  return {at::cat(outputs, 1).to(x.scalar_type()), at::cat(states, 0)};
}

}  // namespace cortado
