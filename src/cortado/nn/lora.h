// LoRA (Hu et al., 2021): low-rank additions to frozen linear maps.
#pragma once

#include <map>
#include <string>

#include "cortado/base/json.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/module.h"
#include "cortado/primitives/types.h"

namespace cortado {

// y += (alpha / rank) · B A x, with A [rank, in] ("down", uniform in ±1/√in at the start) and B [out, rank] ("up", 0).
class Lora : public Module {
 public:
  Lora(int64_t in, int64_t out, int64_t rank, double alpha);

  // x [..., in] -> [..., out], in x's type.
  Tensor forward(const Tensor& x) const;
  // (alpha / rank) · B A, [out, in].
  Tensor product() const { return at::mm(up, down) * scale_; }

  Tensor down, up;

 private:
  double scale_;
};

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  std::vector<std::string> targets = {"q", "k", "v", "o"};  // the linear maps' own names, in whatever module

  bool operator==(const LoraOptions&) const = default;
};
Json lora_json(const LoraOptions& options);
LoraOptions lora_options(const Json& json, const std::string& place);  // strict

// InputError: a target that no linear map is called.
void check_lora_targets(const torch::nn::Module& module, const LoraOptions& options);
// Gives every linear map of one of these names an adapter; their parameters are "....lora.down" and "....lora.up".
// InputError: a target that no linear map is called, a map that has an adapter.
void attach_lora(torch::nn::Module& module, const LoraOptions& options);

// The adapters' parameters alone, by their names in the module.
Parameters lora_weights(const torch::nn::Module& module);
// named_weights() without the adapters, each of which is added to its map's weight; the module stays as it is.
NamedTensors merged_weights(const torch::nn::Module& module);

// `weights` with the adapters among `adapters` ("X.lora.down" and "X.lora.up") added to "X.weight" in float32, in the
// weight's type. InputError: an adapter of no weight.
void merge_into(std::map<std::string, Tensor>& weights, const NamedTensors& adapters, const LoraOptions& options);

// The adapters and their options as a file of their own. load attaches them to a module that has none; InputError: the
// file is damaged or of another model.
void save_lora(const std::string& path, const NamedTensors& adapters, const LoraOptions& options);
LoraOptions load_lora(const std::string& path, torch::nn::Module& module);

}  // namespace cortado
