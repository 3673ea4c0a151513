#include "cortado/nn/rg_lru/rg_lru.h"

#include "cortado/nn/composition.h"
#include "cortado/primitives/elementwise_scan/op.h"

namespace cortado {
namespace {

constexpr double kSlowest = 0.999, kFastest = 0.9;  // range of a at initialisation

}  // namespace

RgLru::RgLru(int64_t dim, int64_t heads) : Module("RgLru") {
  recurrence_gate = register_module("recurrence_gate", std::make_shared<BlockDiagonal>(dim, heads));
  input_gate = register_module("input_gate", std::make_shared<BlockDiagonal>(dim, heads));
  // a = √u for u uniform in [0.9², 0.999²], and a = exp(-softplus(Λ)), so Λ = log(1/a - 1).
  const Tensor a = at::empty({dim}).uniform_(kFastest * kFastest, kSlowest * kSlowest).sqrt();
  register_parameter(lambda, "lambda", (1 / a - 1).log(), Role::kDynamics);
}

// A part maps the state h before it to exp(Σ_t log a_t) h + Σ_t exp(Σ_{s>t} log a_s) b_t.
Tensor RgLru::before(const RgLruGates& now, const Tensor& start, const SequenceParts& parts) {
  const auto made = [](const Tensors& in) -> Composition {
    const Tensor left = left_of_decays(in[0]);
    return {left.select(1, 0), (left.slice(1, 1) * in[1]).sum(1)};
  };
  return compose({now.log_a, now.b}, {}, SequenceParts::Decay::kFactors, made).before(parts, start);
}

Tensor RgLru::forward(const Tensor& x, const Batch& batch, SequenceState* state, const std::string& name) const {
  const OptionalTensor position = start_of(state, StateLayout::kPosition), start = start_of(state, name);
  if (state && x.size(1) == 1 && !batch.cu_seqlens && !batch.parts && !at::GradMode::is_enabled()) {
    const RgLruToken token = rg_lru_token(x, weights(), *position, *start);
    if (token.h.defined()) {
      state->at(name) = token.h;
      return token.y;
    }
  }
  const RgLruGates now = rg_lru_gates(x, weights(), batch.positions(x, position).eq(0));
  auto [h, last] =
      elementwise_scan(now.log_a, now.b, batch.parts ? before(now, *start, *batch.parts) : start, batch.cu_seqlens);
  if (state) state->at(name) = last;
  return h.to(x.scalar_type());
}

Tensor RgLru::bidirectional(const Tensor& x, const Batch& batch) const {
  const Tensor position = batch.positions(x);
  Tensor length = batch.lengths(x);
  length = batch.cu_seqlens ? length.repeat_interleave(length).unsqueeze(0) : length.unsqueeze(1);
  const RgLruGates back = rg_lru_gates(x, weights(), position.eq(length - 1));
  const Tensor h = std::get<0>(elementwise_scan(back.log_a, back.b, {}, batch.cu_seqlens, /*reverse=*/true));
  return forward(x, batch, nullptr, {}) + h.to(x.scalar_type());
}

Tensor RgLru::reference(const Tensor& x, bool causal) const {
  auto run = [this](const Tensor& inputs) {
    const Tensor r = recurrence_gate->forward(inputs).sigmoid(), i = input_gate->forward(inputs).sigmoid();
    const Tensor a = (-kRgLruSharpness * r * at::softplus(lambda)).exp();
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
