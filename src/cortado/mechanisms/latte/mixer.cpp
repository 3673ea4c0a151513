// latte: linear-time attention through L latent states.
#include "cortado/mechanisms/latte/mixer.h"

#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/nn/composition.h"
#include "cortado/nn/linear/op.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

class LatteMixer : public Mixer {
 public:
  LatteMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("latte"),
        heads_(read_heads(settings, context, context.dim, "dim")),
        head_dim_(context.dim / heads_),
        causal_(context.causal) {
    const int64_t dim = context.dim, latents = read_latents(settings, context, heads_, 1);
    latents_ = latents / heads_;
    q_ = register_module("q", std::make_shared<Linear>(dim, latents));
    k_ = register_module("k", std::make_shared<Linear>(dim, latents));
    v_ = register_module("v", std::make_shared<Linear>(dim, dim));
    o_ = register_module("o", make_output_linear(dim, dim));
  }

  Tensor reference(const Tensor& x) override {
    const Tensor p = at::softmax(heads(*q_, x), -1);
    return o_->forward(merge_heads(latte_reference(p, heads(*k_, x), heads(*v_, x), causal_)));
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(4); }

  Joining joining() const override { return {1}; }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const auto all = forward_all(x, {k_.get(), v_.get(), q_.get()});
    const Tensor key_logits = split_heads(all[0], heads_), v = split_heads(all[1], heads_),
                 query_logits = split_heads(all[2], heads_);
    const LatteResult result =
        latte(query_logits, key_logits, v, causal_, latte_start(state, key_logits, v, batch), batch.cu_seqlens);
    keep_latte(state, result);
    return o_->forward(merge_heads(result.o));
  }

  void declare(StateLayout& layout) const override { declare_latte(layout, heads_, latents_, head_dim_); }

  Tensor heads(const Linear& map, const Tensor& x) const { return split_heads(map.forward(x), heads_); }

  int64_t heads_, head_dim_, latents_;  // latents_ is per head
  bool causal_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
};

// What `cortado bench ops` measures.
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

LatteState latte_before_part(const Tensor& key_logits, const Tensor& v, const LatteState& start,
                             const SequenceParts& parts) {
  const auto type = start.state->scalar_type();
  const int64_t heads = start.state->size(1), values = v.size(3);
  const auto logits = [=](const Tensor& x) { return expand_heads(x.to(type), heads); };
  const Tensor largest = logits(key_logits.detach().amax(1, /*keepdim=*/true)).squeeze(1);
  const Tensor before = parts.maximum_before(largest, *start.maximum), m = at::maximum(largest, before);
  const Tensor peak = m.masked_fill(m == -kInfinity, 0);
  const auto made = [=](const Tensors& in) -> Composition {
    const Tensor keys = (logits(in[0]) - peak.unsqueeze(1)).exp();
    return {at::ones({1, 1, 1, 1}, keys.options()),
            sequence_sums(keys, expand_heads(with_ones(in[1], type), heads), {})};
  };
  Composition part = compose({key_logits, v}, {}, SequenceParts::Decay::kFactors, made);
  part.decay = (before - peak).exp().unsqueeze(3);
  const Tensor sums = part.before(parts, at::cat({*start.state, start.normalizer->unsqueeze(3)}, 3));
  return {sums.narrow(3, 0, values), sums.select(3, values), before};
}

extern const Mechanism kLatte = {
    .name = "latte",
    .family = "linear attention",
    .paper = "Latte (2024) eq. 6-17; Latte-Macchiato eq. 6-14",
    .equation = "o_t = sum_l p(l|t) sum_{s<=t} softmax_{s<=t}(theta_sl) v_s",
    .state = "L (d + 2)",
    .primitives = {"latte_scan", "gated_scan", "running_max"},
    .bidirectional = true,
    .make = construct<LatteMixer>,
    .orderless = true,
    .latents = true,
    .operation = latte_case,
};

}  // namespace cortado
