// lightning: linear attention with fixed decays that slow down with depth (TransNormer, MiniMax-01).
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/gated_linear.h"

namespace cortado {

extern const Mechanism kLightning;

class LightningMixer : public GatedLinearMixer {
 public:
  LightningMixer(const GatedLinearSettings& settings, int64_t dim, std::vector<double> logs)
      : GatedLinearMixer("lightning", settings, dim), logs_(std::move(logs)) {}

 protected:
  Tensor decay(const Tensor& x) const override { return constant_decay(logs_, x); }

 private:
  std::vector<double> logs_;
};

}  // namespace cortado
