// lightning: linear attention with fixed decays that slow down with depth (TransNormer, MiniMax-01).
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/gated_linear.h"

namespace cortado {
namespace {

// The log decay of head h in layer l, both counted from 0.
double fla_slope(double head, double heads, double layer, double layers) {
  return -8 / heads * (1 - layer / layers) * head;
}

double minimax_slope(double head, double heads, double layer, double layers) {
  return -std::exp2(-8 * (head + 1) / heads) * (1 - layer / (layers - 1 + 1e-5) + 1e-5);
}

class LightningMixer : public GatedLinearMixer {
 public:
  LightningMixer(const GatedLinearSettings& settings, int64_t dim, std::vector<double> logs)
      : GatedLinearMixer("lightning", settings, dim), logs_(std::move(logs)) {}

 protected:
  Tensor decay(const Tensor& x) const override { return constant_decay(logs_, x); }

 private:
  std::vector<double> logs_;
};

}  // namespace

extern const Mechanism kLightning = {
    .name = "lightning",
    .family = "linear attention",
    .paper = "Lightning Attention-2 (Qin et al. 2024); MiniMax-01 (2025)",
    .equation = "S_t = exp(g_h) S_{t-1} + k_t v_t', o_t = S_t' q_t, g_h fixed by head and layer",
    .state = "H K V, K = V = d",
    .primitives = {"gated_scan", "short_conv"},
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          auto read = GatedLinearSettings::read(settings, context, context.dim, context.dim, "silu", 1e-6);
          const bool minimax = settings.choice("slopes", {"fla", "minimax"}, "minimax") == "minimax";
          read.norm_heads = false;
          read.swish = false;
          read.silu_values = minimax;
          if (minimax) read.scale = 1;
          std::vector<double> logs;
          for (int64_t head = 0; head < read.heads; ++head) {
            logs.push_back((minimax ? minimax_slope : fla_slope)(
                static_cast<double>(head), static_cast<double>(read.heads), static_cast<double>(context.layer),
                static_cast<double>(context.layers)));
          }
          return std::make_shared<LightningMixer>(read, context.dim, logs);
        },
};

}  // namespace cortado
