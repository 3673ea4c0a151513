#include "cortado/nn/rg_lru.h"

#include <torch/csrc/autograd/custom_function.h>

#include "cortado/nn/composition.h"
#include "cortado/nn/fused/ops.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/elementwise_scan/op.h"
#include "cortado/primitives/elementwise_scan/rg_lru_on_gpu.h"

namespace cortado {
namespace {

constexpr double kSharpness = 8.0;                  // c of Griffin's eq. 4: a = exp(-c r softplus(Λ))
constexpr double kLargestSlope = 1000.0;            // of the square root, whose derivative is infinite at a = 1
constexpr double kSlowest = 0.999, kFastest = 0.9;  // the range of a at the start

// √y with its derivative 1/(2√y) held at kLargestSlope.
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

}  // namespace

RgLru::RgLru(int64_t dim, int64_t heads) : Module("RgLru") {
  recurrence_gate = register_module("recurrence_gate", std::make_shared<BlockDiagonal>(dim, heads));
  input_gate = register_module("input_gate", std::make_shared<BlockDiagonal>(dim, heads));
  // a = √u for u uniform in [0.9², 0.999²], and a = exp(-softplus(Λ)), so Λ = log(1/a - 1).
  const Tensor a = at::empty({dim}).uniform_(kFastest * kFastest, kSlowest * kSlowest).sqrt();
  register_parameter(lambda, "lambda", (1 / a - 1).log(), Role::kDynamics);
}

RgLru::Step RgLru::step(const Tensor& x, const Tensor& first) const {
  const Tensor slope = -kSharpness * at::softplus(widen(lambda));
  if (elementwise::gpu_gates(x, recurrence_gate->weight.size(0))) {
    const auto readable = [](const Tensor& y) { return y.scalar_type() == at::kBFloat16 ? y : y.to(at::kFloat); };
    const auto made =
        elementwise::rg_lru_gates({readable(recurrence_gate->products(x)), readable(input_gate->products(x)), x, slope,
                                   recurrence_gate->bias, input_gate->bias, first},
                                  kLargestSlope);
    return {made.log_a, made.b};
  }
  const Tensor recurrence = recurrence_gate->forward(x), input = input_gate->forward(x);
  if (fused::takes({recurrence, input, x, slope})) {
    auto [log_a, b] = fused::rg_lru_gates(recurrence, input, x, slope, first, kLargestSlope);
    return {log_a, b};
  }
  const Tensor r = widen(recurrence).sigmoid(), i = widen(input).sigmoid();
  const Tensor log_a = r * slope;
  const Tensor keep = BoundedSqrt::apply(-at::expm1(2 * log_a));
  return {log_a, keep.masked_fill(first.unsqueeze(2), 1.0) * i * widen(x)};
}

RgLru::Token RgLru::one_token(const Tensor& x, const Batch& batch, const Tensor& position, const Tensor& start) const {
  if (x.size(1) != 1 || batch.cu_seqlens || batch.parts || at::GradMode::is_enabled()) return {};
  if (x.is_cuda()) return one_token_on_gpu(x, position, start);
  const fused::RgLruWeights weights{recurrence_gate->weight, recurrence_gate->bias, input_gate->weight,
                                    input_gate->bias, lambda};
  const auto all = {weights.recurrence, weights.recurrence_bias, weights.input, weights.input_bias, lambda, start};
  for (const Tensor& w : all) {
    if (w.scalar_type() != at::kFloat || !w.is_contiguous()) return {};
  }
  if (!fused::takes({x}) || !fused::takes(all)) return {};
  const Tensor h = fused::rg_lru_step(x, weights, kSharpness, position, start);
  return {h, h.unsqueeze(1).to(x.scalar_type())};
}

RgLru::Token RgLru::one_token_on_gpu(const Tensor& x, const Tensor& position, const Tensor& start) const {
  const elementwise::RgLruStepInputs in{x,
                                        recurrence_gate->weight,
                                        recurrence_gate->bias,
                                        input_gate->weight,
                                        input_gate->bias,
                                        lambda,
                                        position,
                                        start,
                                        kSharpness};
  if (!elementwise::gpu_takes_step(in)) return {};
  const auto [h, y] = elementwise::rg_lru_step(in);
  return {h, y};
}

// A part makes exp(Σ_t log a_t) h + Σ_t exp(Σ_{s>t} log a_s) b_t of what it begins with.
Tensor RgLru::before(const Step& now, const Tensor& start, const SequenceParts& parts) {
  const auto made = [](const Tensors& in) -> Composition {
    const Tensor left = left_of_decays(in[0]);
    return {left.select(1, 0), (left.slice(1, 1) * in[1]).sum(1)};
  };
  return compose({now.log_a, now.b}, {}, SequenceParts::Decay::kFactors, made).before(parts, start);
}

Tensor RgLru::forward(const Tensor& x, const Batch& batch, SequenceState* state, const std::string& name) const {
  const OptionalTensor position = start_of(state, StateLayout::kPosition), start = start_of(state, name);
  if (const Token token = state ? one_token(x, batch, *position, *start) : Token(); token.h.defined()) {
    state->at(name) = token.h;
    return token.y;
  }
  const Step now = step(x, batch.positions(x, position).eq(0));
  auto [h, last] =
      elementwise_scan(now.log_a, now.b, batch.parts ? before(now, *start, *batch.parts) : start, batch.cu_seqlens);
  if (state) state->at(name) = last;
  return h.to(x.scalar_type());
}

Tensor RgLru::bidirectional(const Tensor& x, const Batch& batch) const {
  const Tensor position = batch.positions(x);
  Tensor length = batch.lengths(x);
  length = batch.cu_seqlens ? length.repeat_interleave(length).unsqueeze(0) : length.unsqueeze(1);
  const Step back = step(x, position.eq(length - 1));
  const Tensor h = std::get<0>(elementwise_scan(back.log_a, back.b, {}, batch.cu_seqlens, /*reverse=*/true));
  return forward(x, batch, nullptr, {}) + h.to(x.scalar_type());
}

Tensor RgLru::reference(const Tensor& x, bool causal) const {
  auto run = [this](const Tensor& inputs) {
    const Tensor r = recurrence_gate->forward(inputs).sigmoid(), i = input_gate->forward(inputs).sigmoid();
    const Tensor a = (-kSharpness * r * at::softplus(lambda)).exp();
    std::vector<Tensor> h;
    for (int64_t t = 0; t < inputs.size(1); ++t) {
      const Tensor input = i.select(1, t) * inputs.select(1, t);
      const Tensor a_t = a.select(1, t);
      h.push_back(t == 0 ? input : a_t * h.back() + (1 - a_t * a_t).sqrt() * input);
    }
    return at::stack(h, 1);
  };
  return causal ? run(x) : run(x) + run(x.flip(1)).flip(1);
}

}  // namespace cortado
