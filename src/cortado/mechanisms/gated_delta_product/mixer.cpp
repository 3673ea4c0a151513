// gated_delta_product: DeltaProduct, several delta steps per token after one decay per head.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"
#include "cortado/primitives/common.h"

namespace cortado {
namespace {

// State: that of DeltaMixer; the tails of k and v are `steps` times as wide.
class GatedDeltaProductMixer : public DeltaMixer {
 public:
  GatedDeltaProductMixer(JsonReader& settings, const MixerContext& context)
      : DeltaMixer("gated_delta_product", settings, context,
                   {.key_share = 0.75, .value_share = 2, .output_gate = "silu", .reflect = true, .steps = 2}) {
    if (!settings.boolean("gated", true)) return;
    decay_ = register_module("decay", std::make_shared<Linear>(context.dim, heads_));
    register_parameter(a_log_, "a_log", draw_a_log(heads_, 0.01), Role::kDynamics);
    register_parameter(dt_bias_, "dt_bias", initial_step_bias({heads_}), Role::kDynamics);
  }

 protected:
  const Linear* decay_map() const override { return decay_.get(); }
  OptionalTensor log_decay(const Tensor& mapped) const override {
    return decay_ ? OptionalTensor(softplus_decay(mapped, a_log_, dt_bias_)) : std::nullopt;
  }

  Tensor read_reference(const Qkv& in, const Tensors& rates, const OptionalTensor& g) const override {
    const auto by_step = [&](const Tensor& x) { return x.unflatten(2, {steps_, -1}); };  // [B,T,n,heads,...]
    const Tensor q = expand_heads(in.q, heads_), k = expand_heads(by_step(in.k), heads_, 3), v = by_step(in.v),
                 beta = by_step(delta_rate(sizes(), rates[0]));
    Tensor s = at::zeros({q.size(0), heads_, head_dim_, value_head_dim_}, q.options());
    Tensors read;
    for (int64_t t = 0; t < q.size(1); ++t) {
      if (g) s = s * g->select(1, t).exp().unsqueeze(-1).unsqueeze(-1);
      for (int64_t j = 0; j < steps_; ++j) {
        const Tensor key = k.select(1, t).select(1, j).unsqueeze(-1), value = v.select(1, t).select(1, j).unsqueeze(2);
        const Tensor wrong = value - (key * s).sum(2, true);
        s = s + beta.select(1, t).select(1, j).unsqueeze(-1).unsqueeze(-1) * key * wrong;
      }
      read.push_back((q.select(1, t).unsqueeze(-1) * s).sum(2) / std::sqrt(static_cast<double>(head_dim_)));
    }
    return at::stack(read, 1);
  }

 private:
  std::shared_ptr<Linear> decay_;  // null: no decay
  Tensor a_log_, dt_bias_;         // [H]
};

}  // namespace

extern const Mechanism kGatedDeltaProduct = {
    .name = "gated_delta_product",
    .family = "delta rule",
    .paper = "DeltaProduct (Siems et al. 2025)",
    .equation = "S = a_t S_{t-1}, n times: S = S + k_tj beta_tj (v_tj - S' k_tj)', S_t = S, o_t = S_t' q_t",
    .state = "H K V + (taps-1) H (K + steps (K + V)), K = 3/4 d, V = 2 K",
    .primitives = {"delta_scan", "short_conv"},
    .make = construct<GatedDeltaProductMixer>,
};

}  // namespace cortado
