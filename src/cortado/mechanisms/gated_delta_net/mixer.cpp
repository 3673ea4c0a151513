// gated_delta_net: the delta rule after a decay of each head.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {

namespace {

class GatedDeltaNetMixer : public DeltaMixer {
 public:
  GatedDeltaNetMixer(const DeltaSettings& settings, int64_t dim) : DeltaMixer("gated_delta_net", settings, dim) {
    decay_ = register_module("decay", std::make_shared<Linear>(dim, settings.heads));
    a_log_ = register_parameter("a_log", draw_a_log(settings.heads, 0.01));
    dt_bias_ = register_parameter("dt_bias", initial_step_bias({settings.heads}));
  }

 protected:
  std::optional<Tensor> log_decay(const Tensor& x) const override {
    return softplus_decay(decay_->forward(x), a_log_, dt_bias_);
  }

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
    .state = "H K V + (taps - 1)(2 H K + H V)",
    .primitives = {"delta_scan", "short_conv"},
    .bidirectional = false,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          return std::make_shared<GatedDeltaNetMixer>(read_delta_settings(settings, context, 0.75, 2, "silu"),
                                                      context.dim);
        },
};

}  // namespace cortado
