// delta_net: DeltaNet, the delta rule without decay.
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {
namespace {

class DeltaNetMixer : public DeltaMixer {
 public:
  DeltaNetMixer(JsonReader& settings, const MixerContext& context)
      : DeltaMixer("delta_net", settings, context, {1.0, 1, "none"}) {}

 protected:
  OptionalTensor log_decay(const Tensor&) const override { return {}; }
};

}  // namespace

extern const Mechanism kDeltaNet = {
    .name = "delta_net",
    .family = "delta rule",
    .paper = "DeltaNet (Schlag et al. 2021; Yang et al. 2024)",
    .equation = "S_t = S_{t-1} + k_t beta_t (v_t - S_{t-1}' k_t)', o_t = S_t' q_t",
    .state = "H K V + (taps-1) H (2 K + V), K = V = d",
    .primitives = {"delta_scan", "short_conv"},
    .make = construct<DeltaNetMixer>,
};

}  // namespace cortado
