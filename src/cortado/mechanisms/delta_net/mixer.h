// delta_net: DeltaNet, the delta rule without decay.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {

extern const Mechanism kDeltaNet;

class DeltaNetMixer : public DeltaMixer {
 public:
  DeltaNetMixer(const DeltaSettings& settings, int64_t dim) : DeltaMixer("delta_net", settings, dim) {}

 protected:
  std::optional<Tensor> log_decay(const Tensor&) const override { return {}; }
};

}  // namespace cortado
