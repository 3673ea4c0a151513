// gla: linear attention with a data-dependent decay per key channel.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/gated_linear.h"

namespace cortado {
namespace {

class GlaMixer : public GatedLinearMixer {
 public:
  GlaMixer(JsonReader& settings, const MixerContext& context)
      : GatedLinearMixer(
            "gla",
            GatedLinearSettings::read(settings, context, std::max<int64_t>(1, context.dim / 2), context.dim, "none"),
            context.dim) {
    const int64_t rank = settings.integer("decay_rank", 1, 1 << 20, 16);
    temperature_ = settings.number("decay_temperature", 1e-3, 1e6, 16.0);
    down_ = register_module("decay_down", std::make_shared<Linear>(context.dim, rank));
    up_ = register_module("decay_up", std::make_shared<Linear>(rank, settings_.key_dim, /*with_bias=*/true));
  }

 protected:
  Tensor decay(const Tensor& x) const override {
    const Tensor logits = widen(up_->forward(down_->forward(x)));
    return split_heads(at::log_sigmoid(logits) / temperature_, settings_.heads);
  }

 private:
  double temperature_;  // divides the log-sigmoid
  std::shared_ptr<Linear> down_, up_;
};

}  // namespace

extern const Mechanism kGla = {
    .name = "gla",
    .family = "linear attention",
    .paper = "Gated Linear Attention (Yang et al. 2024) eq. 3-4",
    .equation = "S_t = diag(a_t) S_{t-1} + k_t v_t', a_t = sigmoid(x W_1 W_2 + b)^(1/16), o_t = S_t' q_t",
    .state = "H K V, K = d/2, V = d",
    .primitives = {"gated_scan", "short_conv"},
    .make = construct<GlaMixer>,
};

}  // namespace cortado
