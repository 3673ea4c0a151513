// kda: Kimi Delta Attention, the delta rule after a decay of each key channel.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/delta.h"

namespace cortado {

extern const Mechanism kKda;

class KdaMixer : public DeltaMixer {
 public:
  KdaMixer(const DeltaSettings& settings, int64_t dim);

 protected:
  std::optional<Tensor> log_decay(const Tensor& x) const override;

 private:
  std::shared_ptr<Linear> decay_in_, decay_;
  Tensor a_log_, dt_bias_;  // [H], [H,K]
};

}  // namespace cortado
