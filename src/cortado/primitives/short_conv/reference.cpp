// The definition, tap by tap. op.cpp is tested against it.
#include "cortado/primitives/reference.h"

#include "cortado/primitives/short_conv/op.h"

namespace cortado {

TensorTuple<2> short_conv_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                    std::string_view activation, const OptionalTensor& initial_state,
                                    const OptionalTensor& cu_seqlens) {
  const auto type = accumulation_type({x, weight, bias, initial_state});
  const Tensor inputs = x.to(type), taps = weight.to(type), offset = bias ? bias->to(type) : Tensor();
  const int64_t last = weight.size(1) - 1;
  const Tensor tails = initial_state ? initial_state->to(type)
                                     : at::zeros({state_rows(x, cu_seqlens), last, x.size(2)}, inputs.options());
  const auto step = [&](int64_t t, Tensor& tail) {
    const Tensor seen = at::cat({tail, inputs.narrow(1, t, 1)}, 1);  // [B,W,D], x_{t-i} at W - 1 - i
    Tensor y = at::zeros_like(inputs.select(1, t));
    for (int64_t i = 0; i <= last; ++i) y = y + taps.select(1, last - i) * seen.select(1, last - i);
    if (offset.defined()) y = y + offset;
    tail = seen.narrow(1, 1, last);
    return activation == "silu" ? y * at::sigmoid(y) : y;
  };
  const auto [y, state] = token_by_token("short_conv", cu_seqlens, x.size(1), tails, inputs, step);
  return {y.to(x.scalar_type()), state};
}

}  // namespace cortado
