// Learned feature maps of queries and keys, a matrix a head.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

using at::Tensor;

// Where the softmax part's factor starts: σ(-ln 9) = 0.1.
inline constexpr double kFirstWindowFactor = -2.1972245773362196;

const std::vector<std::string>& head_feature_maps();

struct HeadFeatureSettings {
  std::string kind;  // of head_feature_maps()
  int64_t features;  // f, columns of the matrices

  // {"feature_map", "features"} of a mixer's settings.
  static HeadFeatureSettings read(JsonReader& settings, int64_t head_dim);
};

// x [B,T,H,d] -> φ(x) [B,T,H,F], with y = x W (+ b), W [H,d,f] starting as the rectangular identity. Never below 1e-12.
// | kind         | φ                                        | F  | bias |
// | lolcats      | [softmax(y), softmax(-y)], two softmaxes | 2f | no   |
// | hedgehog     | softmax([2y, -2y]), one softmax          | 2f | yes  |
// | hedgehog_exp | [exp(y - max y), exp(-y + min y)]        | 2f | no   |
// | t2r          | relu(y)                                  | f  | yes  |
// ("hedgehog_exp" was "exp" to earlier versions.)
class HeadFeatureMap : public torch::nn::Module {
 public:
  HeadFeatureMap(const HeadFeatureSettings& settings, int64_t heads, int64_t head_dim);

  Tensor forward(const Tensor& x) const;
  int64_t width() const { return settings_.kind == "t2r" ? settings_.features : 2 * settings_.features; }  // F
  double flops_per_token() const { return 2.0 * static_cast<double>(weight.numel()); }

  Tensor weight, bias;  // bias [H,f], undefined without

 private:
  HeadFeatureSettings settings_;
};

}  // namespace cortado
