#include "cortado/mechanisms/latte/mixer.h"

#include <limits>

#include "cortado/mechanisms/latte/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {

void declare_latte(StateLayout& layout, int64_t heads, int64_t latents_per_head, int64_t head_dim) {
  layout.scan("latte_state", {heads, latents_per_head, head_dim});
  layout.scan("latte_normalizer", {heads, latents_per_head});
  layout.scan("latte_maximum", {heads, latents_per_head}, -std::numeric_limits<double>::infinity());
}

LatteState latte_start(const SequenceState* state) {
  if (!state) return {};
  return {state->at("latte_state"), state->at("latte_normalizer"), state->at("latte_maximum")};
}

void keep_latte(SequenceState* state, const LatteResult& result) {
  keep(state,
       {{"latte_state", result.state}, {"latte_normalizer", result.normalizer}, {"latte_maximum", result.maximum}});
}

LatteMixer::LatteMixer(int64_t dim, int64_t heads, int64_t latents, bool causal)
    : Mixer("latte"), heads_(heads), latents_(latents / heads), head_dim_(dim / heads), causal_(causal) {
  q_ = register_module("q", std::make_shared<Linear>(dim, latents));
  k_ = register_module("k", std::make_shared<Linear>(dim, latents));
  v_ = register_module("v", std::make_shared<Linear>(dim, dim));
  o_ = register_module("o", make_output_linear(dim, dim));
}

Tensor LatteMixer::mix(const Tensor& x, const Batch& batch, SequenceState* state) {
  const LatteResult result = latte(split_heads(q_->forward(x), heads_), split_heads(k_->forward(x), heads_),
                                   split_heads(v_->forward(x), heads_), causal_, latte_start(state), batch.cu_seqlens);
  keep_latte(state, result);
  return o_->forward(merge_heads(result.o));
}

Tensor LatteMixer::reference(const Tensor& x) {
  const Tensor p = at::softmax(split_heads(q_->forward(x), heads_), -1);
  return o_->forward(merge_heads(
      latte_reference(p, split_heads(k_->forward(x), heads_), split_heads(v_->forward(x), heads_), causal_)));
}

StateLayout LatteMixer::state_layout() const {
  StateLayout layout;
  declare_latte(layout, heads_, latents_, head_dim_);
  return layout;
}

double LatteMixer::flops_per_token(int64_t) const { return weight_flops() + scan_flops(4); }

namespace {

// What is measured of the operator.
OperatorCase latte_case() {
  OperatorCase c{.name = "latte", .operation = "latte", .note = "as many latents as channels"};
  c.inputs = qkv;
  c.call = [](const Tensors& in, const Tensors& carried) {
    return latte(in[0], in[1], in[2], true, {part(carried, 0), part(carried, 1), part(carried, 2)}).tensors();
  };
  c.reference = [](const Tensors& in) { return Tensors{latte_reference(at::softmax(in[0], -1), in[1], in[2], true)}; };
  c.work = [](const OperatorSizes& s) { return Work{4 * state_elements(s), 3 * channels(s)}; };
  return c;
}

}  // namespace

extern const Mechanism kLatte = {
    .name = "latte",
    .family = "linear attention",
    .paper = "Latte (2024) eq. 6-17; Latte-Macchiato eq. 6-14",
    .equation = "o_t = sum_l p(l|t) sum_{s<=t} softmax_{s<=t}(theta_sl) v_s",
    .state = "L (D/H + 2)",
    .primitives = {"latte_scan", "gated_scan", "running_max"},
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          const int64_t heads = read_heads(settings, context, context.dim, "dim");
          const int64_t latents = settings.integer("latents", 1, 1 << 20, context.dim);
          if (latents % heads != 0) {
            settings.fail(concat("latents (", latents, ") is not divisible by heads (", heads, ")"));
          }
          return std::make_shared<LatteMixer>(context.dim, heads, latents, context.causal);
        },
    .orderless = true,
    .latents = true,
    .operation = latte_case,
};

}  // namespace cortado
