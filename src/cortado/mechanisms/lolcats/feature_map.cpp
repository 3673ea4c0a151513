#include "cortado/mechanisms/lolcats/feature_map.h"

#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/nn/feature_map.h"

namespace cortado {

const std::vector<std::string>& head_feature_maps() {
  static const std::vector<std::string> kinds = {"lolcats", "hedgehog", "hedgehog_exp", "t2r"};
  return kinds;
}

HeadFeatureSettings HeadFeatureSettings::read(JsonReader& settings, int64_t head_dim) {
  settings.renamed_word("feature_map", "exp", "hedgehog_exp");
  return {settings.choice("feature_map", head_feature_maps(), "lolcats"),
          settings.integer("features", 1, 65536, std::min<int64_t>(64, head_dim))};
}

HeadFeatureMap::HeadFeatureMap(const HeadFeatureSettings& settings, int64_t heads, int64_t head_dim)
    : torch::nn::Module("HeadFeatureMap"), settings_(settings) {
  weight = register_parameter("weight", at::eye(head_dim, settings.features).repeat({heads, 1, 1}));
  if (settings_.kind == "hedgehog" || settings_.kind == "t2r")
    bias = register_parameter("bias", at::zeros({heads, settings.features}));
}

Tensor HeadFeatureMap::forward(const Tensor& x) const {
  const bool fused = settings_.kind == "lolcats";
  if (fused && lolcats_fused::inference() && lolcats_fused::takes({x, weight})) {
    return lolcats_fused::mapped_features(x, weight, kLeastFeature);
  }
  Tensor y = at::matmul(x.transpose(1, 2), weight);
  if (fused && lolcats_fused::takes({y})) {
    return lolcats_fused::features(y, kLeastFeature).transpose(1, 2);
  }
  y = y.transpose(1, 2);
  if (bias.defined()) y = y + bias;
  const Tensor phi = settings_.kind == "hedgehog_exp"
                         ? at::cat({(y - y.amax(-1, true)).exp(), (y.amin(-1, true) - y).exp()}, -1)
                         : learned_features(settings_.kind, y);
  return phi.clamp_min(kLeastFeature);
}

}  // namespace cortado
