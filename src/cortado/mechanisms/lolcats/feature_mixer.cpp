#include "cortado/mechanisms/lolcats/feature_mixer.h"

#include "cortado/mechanisms/lolcats/parts_op.h"
#include "cortado/nn/feature_map.h"

namespace cortado {

const std::vector<std::string>& head_feature_maps() {
  static const std::vector<std::string> kinds = {"lolcats", "hedgehog", "hedgehog_exp", "t2r"};
  return kinds;
}

HeadFeatureMap::HeadFeatureMap(std::string kind, int64_t features, int64_t heads, int64_t head_dim)
    : Module("HeadFeatureMap"), kind_(std::move(kind)) {
  register_parameter(weight, "weight", at::eye(head_dim, features).repeat({heads, 1, 1}), Role::kMatrix);
  if (kind_ == "hedgehog" || kind_ == "t2r")
    register_parameter(bias, "bias", at::zeros({heads, features}), Role::kGain);
}

Tensor HeadFeatureMap::forward(const Tensor& x) const {
  if (kind_ == "lolcats") return lolcats_features(x, weight, kLeastFeature);
  Tensor y = at::matmul(x.transpose(1, 2), weight).transpose(1, 2);
  if (bias.defined()) y = y + bias;
  const Tensor phi = kind_ == "hedgehog_exp" ? at::cat({(y - y.amax(-1, true)).exp(), (y.amin(-1, true) - y).exp()}, -1)
                                             : learned_features(kind_, y);
  return phi.clamp_min(kLeastFeature);
}

// Initial logit of the softmax part's factor: σ(-ln 9) = 0.1.
constexpr double kFirstWindowFactor = -2.1972245773362196;

FeatureMixer::FeatureMixer(std::string name, JsonReader& settings, const MixerContext& context)
    : ProjectedMixer(std::move(name), ProjectionSettings::read(settings, context), context.dim) {
  const int64_t heads = projections_.heads, head_dim = projections_.head_dim;
  settings.renamed_word("feature_map", "exp", "hedgehog_exp");
  const std::string kind = settings.choice("feature_map", head_feature_maps(), "lolcats");
  const int64_t features = settings.integer("features", 1, 65536, std::min<int64_t>(64, head_dim));
  phi_q_ = register_module("phi_q", std::make_shared<HeadFeatureMap>(kind, features, heads, head_dim));
  phi_k_ = register_module("phi_k", std::make_shared<HeadFeatureMap>(kind, features, heads, head_dim));
  register_parameter(window_factor_, "window_factor", at::full({heads}, kFirstWindowFactor), Role::kGain);
}

std::optional<StoredPairs> FeatureMixer::stored_pairs(const Tensor& x) const {
  const Projected p = project_reference(x);
  return StoredPairs{phi_k_->forward(for_queries(p.k))[0], for_queries(p.v)[0]};
}

}  // namespace cortado
