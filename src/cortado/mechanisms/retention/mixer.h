// retention: linear attention with one fixed decay a head (RetNet).
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/gated_linear.h"

namespace cortado {

extern const Mechanism kRetention;

class RetentionMixer : public GatedLinearMixer {
 public:
  RetentionMixer(const GatedLinearSettings& settings, int64_t dim) : GatedLinearMixer("retention", settings, dim) {}

 protected:
  Tensor decay(const Tensor& x) const override;
};

}  // namespace cortado
