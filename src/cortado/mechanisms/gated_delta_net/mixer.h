// gated_delta_net: the delta rule after a decay of each head.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {

extern const Mechanism kGatedDeltaNet;

class GatedDeltaNetMixer : public DeltaMixer {
 public:
  GatedDeltaNetMixer(const DeltaSettings& settings, int64_t dim);

 protected:
  std::optional<Tensor> log_decay(const Tensor& x) const override;

 private:
  std::shared_ptr<Linear> decay_;
  Tensor a_log_, dt_bias_;  // [H]
};

}  // namespace cortado
