// gated_delta_net: the delta rule after a decay per head.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {
namespace {

class GatedDeltaNetMixer : public DeltaMixer {
 public:
  GatedDeltaNetMixer(JsonReader& settings, const MixerContext& context)
      : DeltaMixer("gated_delta_net", settings, context, {0.75, 2, "silu"}) {
    decay_ = register_module("decay", std::make_shared<Linear>(context.dim, heads_));
    register_parameter(a_log_, "a_log", draw_a_log(heads_, 0.01), Role::kDynamics);
    register_parameter(dt_bias_, "dt_bias", initial_step_bias({heads_}), Role::kDynamics);
  }

 protected:
  const Linear* decay_map() const override { return decay_.get(); }
  OptionalTensor log_decay(const Tensor& mapped) const override { return softplus_decay(mapped, a_log_, dt_bias_); }

 private:
  std::shared_ptr<Linear> decay_;
  Tensor a_log_, dt_bias_;  // [H]
};

}  // namespace

extern const Mechanism kGatedDeltaNet = {
    .name = "gated_delta_net",
    .family = "delta rule",
    .paper = "Gated DeltaNet (Yang et al. 2025); Qwen3-Next",
    .equation = "P = a_t S_{t-1}, S_t = P + k_t beta_t (v_t - P' k_t)', o_t = S_t' q_t",
    .state = "H K V + (taps-1) H (2 K + V), K = 3/4 d, V = 2 K",
    .primitives = {"delta_scan", "short_conv"},
    .make = construct<GatedDeltaNetMixer>,
};

}  // namespace cortado
