// What lolcats and lola have in common: one checkpoint serves both.
#pragma once

#include <memory>
#include <string>

#include "cortado/mechanisms/lolcats/feature_map.h"
#include "cortado/mechanisms/shared/projected.h"

namespace cortado {

inline constexpr const char* kMixtureHelp =
    "how softmax and linear part share the denominator: lolcats, gated or plain";

// Projections, "phi_q" and "phi_k", and the softmax part's factor "window_factor" [H], before the sigmoid.
class FeatureMixer : public ProjectedMixer {
 public:
  std::optional<StoredPairs> stored_pairs(const Tensor& x) const override;

 protected:
  FeatureMixer(std::string name, const ProjectionSettings& settings, const HeadFeatureSettings& features, int64_t dim);

  std::shared_ptr<HeadFeatureMap> phi_q_, phi_k_;
  Tensor window_factor_;
};

}  // namespace cortado
