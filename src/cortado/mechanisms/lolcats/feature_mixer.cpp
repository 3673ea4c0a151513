#include "cortado/mechanisms/lolcats/feature_mixer.h"

namespace cortado {

FeatureMixer::FeatureMixer(std::string name, const ProjectionSettings& settings, const HeadFeatureSettings& features,
                           int64_t dim)
    : ProjectedMixer(std::move(name), settings, dim) {
  const auto map = [&] { return std::make_shared<HeadFeatureMap>(features, settings.heads, settings.head_dim); };
  phi_q_ = register_module("phi_q", map());
  phi_k_ = register_module("phi_k", map());
  window_factor_ = register_parameter("window_factor", at::full({settings.heads}, kFirstWindowFactor));
}

std::optional<StoredPairs> FeatureMixer::stored_pairs(const Tensor& x) const {
  const Projected p = project(x, Batch{}.positions(x));
  const int64_t heads = window_factor_.size(0);
  return StoredPairs{phi_k_->forward(expand_heads(p.k, heads))[0], expand_heads(p.v, heads)[0]};
}

}  // namespace cortado
