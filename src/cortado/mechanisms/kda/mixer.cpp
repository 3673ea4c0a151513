// kda: Kimi Delta Attention, the delta rule after a decay per key channel.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {
namespace {

class KdaMixer : public DeltaMixer {
 public:
  KdaMixer(JsonReader& settings, const MixerContext& context)
      : DeltaMixer("kda", settings, context, {1.0, 1, "sigmoid", /*low_rank=*/true}) {
    lower_bound_ = settings.optional_number("lower_bound", -1e3, -1e-3);
    decay_in_ = register_module("decay_in", std::make_shared<Linear>(context.dim, gate_rank_));
    decay_ = register_module("decay", std::make_shared<Linear>(gate_rank_, heads_ * head_dim_));
    const Tensor a_log = draw_a_log(heads_, 1.0);
    register_parameter(a_log_, "a_log", lower_bound_ ? at::zeros_like(a_log) : a_log, Role::kDynamics);
    register_parameter(dt_bias_, "dt_bias", initial_step_bias({heads_, head_dim_}), Role::kDynamics);
  }

 protected:
  const Linear* decay_map() const override { return decay_in_.get(); }
  OptionalTensor log_decay(const Tensor& mapped) const override {
    const Tensor logits = split_heads(decay_->forward(mapped), heads_), a_log = a_log_.unsqueeze(-1);
    if (!lower_bound_) return softplus_decay(logits, a_log, dt_bias_);
    return *lower_bound_ * at::sigmoid(widen(a_log).exp() * (widen(logits) + widen(dt_bias_)));
  }

 private:
  std::optional<double> lower_bound_;  // of the decay's log; nullopt: the decay is a softplus, which has none
  std::shared_ptr<Linear> decay_in_, decay_;
  Tensor a_log_, dt_bias_;  // [H], [H,K]
};

}  // namespace

extern const Mechanism kKda = {
    .name = "kda",
    .family = "delta rule",
    .paper = "Kimi Linear (Moonshot AI 2025)",
    .equation = "P = diag(a_t) S_{t-1}, S_t = P + k_t beta_t (v_t - P' k_t)', o_t = S_t' q_t",
    .state = "H K V + (taps-1) H (2 K + V), K = V = d",
    .primitives = {"delta_scan", "short_conv"},
    .make = construct<KdaMixer>,
};

}  // namespace cortado
