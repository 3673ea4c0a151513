// retention: linear attention with one fixed decay per head (RetNet).
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/gated_linear.h"

namespace cortado {
namespace {

class RetentionMixer : public GatedLinearMixer {
 public:
  RetentionMixer(const GatedLinearSettings& settings, int64_t dim) : GatedLinearMixer("retention", settings, dim) {}

 protected:
  // Natural log of the decay of head h: ln(1 - 2^{-5-h}).
  Tensor decay(const Tensor& x) const override {
    std::vector<double> logs;
    for (int64_t head = 0; head < settings_.heads; ++head) {
      logs.push_back(std::log1p(-std::exp2(-5.0 - static_cast<double>(head))));
    }
    return constant_decay(logs, x);
  }
};

}  // namespace

extern const Mechanism kRetention = {
    .name = "retention",
    .family = "linear attention",
    .paper = "RetNet (Sun et al. 2023) eq. 5-8",
    .equation = "S_t = (1 - 2^(-5-h)) S_{t-1} + k_t v_t', o_t = S_t' q_t, q and k rotated",
    .state = "H K V, K = d, V = 2 d",
    .primitives = {"gated_scan", "short_conv"},
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          auto read = GatedLinearSettings::read(settings, context, context.dim, 2 * context.dim, "none");
          read.rotary = read_rotary(settings, context, read.key_dim / read.heads, /*fallback=*/true);
          return std::make_shared<RetentionMixer>(read, context.dim);
        },
};

}  // namespace cortado
