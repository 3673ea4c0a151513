#include "cortado/mechanisms/lolcats/feature_map.h"

#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/nn/feature_map.h"

namespace cortado {

HeadFeatureMap::HeadFeatureMap(std::string kind, int64_t heads, int64_t head_dim, int64_t features)
    : torch::nn::Module("HeadFeatureMap"), kind_(std::move(kind)), features_(features) {
  weight = register_parameter("weight", at::eye(head_dim, features).repeat({heads, 1, 1}));
  if (kind_ == "hedgehog" || kind_ == "t2r") bias = register_parameter("bias", at::zeros({heads, features}));
}

Tensor HeadFeatureMap::forward(const Tensor& x) const {
  Tensor y = at::matmul(x.transpose(1, 2), weight);
  if (kind_ == "lolcats" && lolcats_fused::takes({y})) {
    return lolcats_fused::features(y, kLeastFeature).transpose(1, 2);
  }
  y = y.transpose(1, 2);
  if (bias.defined()) y = y + bias;
  const Tensor phi = kind_ == "exp" ? at::cat({(y - y.amax(-1, true)).exp(), (y.amin(-1, true) - y).exp()}, -1)
                                    : learned_features(kind_, y);
  return phi.clamp_min(kLeastFeature);
}

}  // namespace cortado
