#include "cortado/mechanisms/lolcats/feature_map.h"

namespace cortado {

HeadFeatureMap::HeadFeatureMap(std::string kind, int64_t heads, int64_t head_dim, int64_t features)
    : torch::nn::Module("HeadFeatureMap"), kind_(std::move(kind)), features_(features) {
  weight = register_parameter("weight", at::eye(head_dim, features).repeat({heads, 1, 1}));
  if (kind_ == "hedgehog" || kind_ == "t2r") bias = register_parameter("bias", at::zeros({heads, features}));
}

Tensor HeadFeatureMap::forward(const Tensor& x) const {
  Tensor y = at::matmul(x.transpose(1, 2), weight).transpose(1, 2);
  if (bias.defined()) y = y + bias;
  Tensor phi;
  if (kind_ == "lolcats") {
    phi = at::cat({at::softmax(y, -1), at::softmax(-y, -1)}, -1);
  } else if (kind_ == "hedgehog") {
    phi = at::softmax(at::cat({2 * y, -2 * y}, -1), -1);
  } else if (kind_ == "exp") {
    phi = at::cat({(y - y.amax(-1, true)).exp(), (y.amin(-1, true) - y).exp()}, -1);
  } else {
    phi = at::relu(y);
  }
  return phi.clamp_min(1e-12);
}

}  // namespace cortado
