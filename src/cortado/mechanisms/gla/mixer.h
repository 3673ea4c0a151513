// gla: linear attention with a data-dependent decay for every key channel.
#pragma once

#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/gated_linear.h"

namespace cortado {

extern const Mechanism kGla;

class GlaMixer : public GatedLinearMixer {
 public:
  // rank: of the decay's projection; the logarithm of the sigmoid is divided by `temperature`.
  GlaMixer(const GatedLinearSettings& settings, int64_t dim, int64_t rank, double temperature);

 protected:
  Tensor decay(const Tensor& x) const override;

 private:
  double temperature_;
  std::shared_ptr<Linear> down_, up_;
};

}  // namespace cortado
