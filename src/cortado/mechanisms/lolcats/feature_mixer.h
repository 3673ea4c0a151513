// What lolcats and lola have in common: learned feature maps of queries and keys, a matrix a head. One checkpoint serves
// both.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "cortado/mechanisms/shared/projected.h"
#include "cortado/primitives/common.h"

namespace cortado {

const std::vector<std::string>& head_feature_maps();

// x [B,T,H,d] -> φ(x) [B,T,H,F], with y = x W (+ b), W [H,d,f] starting as the rectangular identity. Never below 1e-12.
// | kind         | φ                                        | F  | bias |
// | lolcats      | [softmax(y), softmax(-y)], two softmaxes | 2f | no   |
// | hedgehog     | softmax([2y, -2y]), one softmax          | 2f | yes  |
// | hedgehog_exp | [exp(y - max y), exp(-y + min y)]        | 2f | no   |
// | t2r          | relu(y)                                  | f  | yes  |
// ("hedgehog_exp" was "exp" to earlier versions.)
class HeadFeatureMap : public Module {
 public:
  // A kind of head_feature_maps(), f columns.
  HeadFeatureMap(std::string kind, int64_t features, int64_t heads, int64_t head_dim);

  Tensor forward(const Tensor& x) const;
  int64_t width() const { return weight.size(2) * (kind_ == "t2r" ? 1 : 2); }  // F
  double flops_per_token() const { return 2.0 * static_cast<double>(weight.numel()); }

  Tensor weight, bias;  // bias [H,f], undefined without

 private:
  std::string kind_;
};

inline constexpr const char* kMixtureHelp =
    "how softmax and linear part share the denominator: lolcats, gated or plain";

// Projections, "phi_q" and "phi_k", and the softmax part's factor "window_factor" [H], before the sigmoid.
class FeatureMixer : public ProjectedMixer {
 public:
  std::optional<StoredPairs> stored_pairs(const Tensor& x) const override;

 protected:
  // Reads its projections' settings and {"feature_map", "features"}.
  FeatureMixer(std::string name, JsonReader& settings, const MixerContext& context);

  // Keys or values of every query head: [B,T,Hkv,d] -> [B,T,H,d].
  Tensor for_queries(const Tensor& x) const { return expand_heads(x, projections_.heads); }

  std::shared_ptr<HeadFeatureMap> phi_q_, phi_k_;
  Tensor window_factor_;
};

}  // namespace cortado
