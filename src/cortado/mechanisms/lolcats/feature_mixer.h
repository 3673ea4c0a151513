// The base of lolcats and lola: learned feature maps of queries and keys with one matrix per head. One checkpoint
// serves both mechanisms.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "cortado/mechanisms/shared/projected.h"
#include "cortado/primitives/common.h"

namespace cortado {

const std::vector<std::string>& head_feature_maps();

// Maps x [B,T,H,d] to φ(x) [B,T,H,F] with y = x W (+ b). W [H,d,f] starts as the rectangular identity. φ is at least
// 1e-12.
// | kind         | φ                                        | F  | bias |
// | lolcats      | [softmax(y), softmax(-y)], two softmaxes | 2f | no   |
// | hedgehog     | softmax([2y, -2y]), one softmax          | 2f | yes  |
// | hedgehog_exp | [exp(y - max y), exp(-y + min y)]        | 2f | no   |
// | t2r          | relu(y)                                  | f  | yes  |
// "hedgehog_exp" was once called "exp".
class HeadFeatureMap : public Module {
 public:
  // `kind` is one of head_feature_maps(); `features` is f, the number of columns.
  HeadFeatureMap(std::string kind, int64_t features, int64_t heads, int64_t head_dim);

  Tensor forward(const Tensor& x) const;
  int64_t width() const { return weight.size(2) * (kind_ == "t2r" ? 1 : 2); }  // F
  double flops_per_token() const { return 2.0 * static_cast<double>(weight.numel()); }

  Tensor weight, bias;  // bias [H,f]; undefined for kinds without one

 private:
  std::string kind_;
};

inline constexpr const char* kMixtureHelp =
    "how softmax and linear part share the denominator: lolcats, gated or plain";

// Has the projections, "phi_q" and "phi_k", and "window_factor" [H], the softmax part's factor before the sigmoid.
class FeatureMixer : public ProjectedMixer {
 public:
  std::optional<StoredPairs> stored_pairs(const Tensor& x) const override;

 protected:
  // Reads the settings of the projections and {"feature_map", "features"}.
  FeatureMixer(std::string name, JsonReader& settings, const MixerContext& context);

  // Repeats keys or values to the query heads: [B,T,Hkv,d] -> [B,T,H,d].
  Tensor for_queries(const Tensor& x) const { return expand_heads(x, projections_.heads); }

  std::shared_ptr<HeadFeatureMap> phi_q_, phi_k_;
  Tensor window_factor_;
};

}  // namespace cortado
