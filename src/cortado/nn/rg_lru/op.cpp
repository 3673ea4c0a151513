#include "cortado/nn/rg_lru/op.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cortado/nn/fused/ops.h"
#include "cortado/nn/rg_lru/on_gpu.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/choice.h"

namespace cortado {
namespace {

constexpr double kLargestSlope = 1000.0;  // limit on the derivative of the square root, which is infinite at a = 1

// √y with its derivative 1/(2√y) limited to kLargestSlope.
class BoundedSqrt : public torch::autograd::Function<BoundedSqrt> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& y) {
    ctx->save_for_backward({y});
    return y.sqrt();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const Tensor y = ctx->get_saved_variables()[0];
    return {gradients[0] * (4 * y).clamp_min(1 / (kLargestSlope * kLargestSlope)).rsqrt()};
  }
};

RgLruGates gates_on_gpu(const Tensor& x, const RgLruWeights& weights, const Tensor& slope, const Tensor& first) {
  const auto readable = [](const Tensor& y) { return y.scalar_type() == at::kBFloat16 ? y : y.to(at::kFloat); };
  const auto made = elementwise::rg_lru_gates(
      {readable(block_products(x, weights.recurrence)), readable(block_products(x, weights.input)), x, slope,
       weights.recurrence_bias, weights.input_bias, first},
      kLargestSlope);
  return {made.log_a, made.b};
}

RgLruGates gates_by_definition(const Tensor& x, const Tensor& recurrence, const Tensor& input, const Tensor& slope,
                               const Tensor& first) {
  const Tensor r = widen(recurrence).sigmoid(), i = widen(input).sigmoid();
  const Tensor log_a = r * slope;
  const Tensor keep = BoundedSqrt::apply(-at::expm1(2 * log_a));
  return {log_a, keep.masked_fill(first.unsqueeze(2), 1.0) * i * widen(x)};
}

RgLruGates gates_of_products(const Tensor& x, const Tensor& recurrence, const Tensor& input, const Tensor& slope,
                             const Tensor& first) {
  return choose("rg_lru_gates of products", x,
                on_cpu(
                    "kernel", [&] { return fused::takes({recurrence, input, x, slope}); },
                    [&]() -> RgLruGates {
                      const auto [log_a, b] = fused::rg_lru_gates(recurrence, input, x, slope, first, kLargestSlope);
                      return {log_a, b};
                    }),
                otherwise("ATen", [&] { return gates_by_definition(x, recurrence, input, slope, first); }));
}

bool step_kernel_takes(const Tensor& x, const RgLruWeights& weights, const Tensor& start) {
  const auto all = {weights.recurrence, weights.recurrence_bias, weights.input,
                    weights.input_bias, weights.lambda,          start};
  const auto plain = [](const Tensor& w) { return w.scalar_type() == at::kFloat && w.is_contiguous(); };
  return std::all_of(all.begin(), all.end(), plain) && fused::takes({x}) && fused::takes(all);
}

elementwise::RgLruStepInputs step_inputs(const Tensor& x, const RgLruWeights& weights, const Tensor& position,
                                         const Tensor& start) {
  return {
      x,     weights.recurrence, weights.recurrence_bias, weights.input, weights.input_bias, weights.lambda, position,
      start, kRgLruSharpness};
}

}  // namespace

Tensor block_products(const Tensor& x, const Tensor& weight) {
  return at::bmm(x.reshape({-1, weight.size(0), weight.size(1)}).transpose(0, 1), weight);
}

Tensor block_diagonal(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return block_products(x, weight).transpose(0, 1).reshape(x.sizes()) + bias;
}

RgLruGates rg_lru_gates(const Tensor& x, const RgLruWeights& weights, const Tensor& first) {
  const Tensor slope = -kRgLruSharpness * at::softplus(widen(weights.lambda));
  return choose("rg_lru_gates", x,
                on_gpu(
                    "kernel", [&] { return elementwise::gpu_gates(x, weights.recurrence.size(0)); },
                    [&] { return gates_on_gpu(x, weights, slope, first); }),
                otherwise("products", [&] {
                  return gates_of_products(x, block_diagonal(x, weights.recurrence, weights.recurrence_bias),
                                           block_diagonal(x, weights.input, weights.input_bias), slope, first);
                }));
}

RgLruToken rg_lru_token(const Tensor& x, const RgLruWeights& weights, const Tensor& position, const Tensor& start) {
  return choose("rg_lru of one token", x,
                on_cpu(
                    "kernel", [&] { return step_kernel_takes(x, weights, start); },
                    [&]() -> RgLruToken {
                      const Tensor h = fused::rg_lru_step(x, weights, kRgLruSharpness, position, start);
                      return {h, h.unsqueeze(1).to(x.scalar_type())};
                    }),
                on_gpu(
                    "kernel", [&] { return elementwise::gpu_takes_step(step_inputs(x, weights, position, start)); },
                    [&]() -> RgLruToken {
                      const auto [h, y] = elementwise::rg_lru_step(step_inputs(x, weights, position, start));
                      return {h, y};
                    }),
                otherwise("scan", [] { return RgLruToken{}; }));
}

}  // namespace cortado
