// LoRA (Hu et al., 2021): low-rank additions to frozen linear maps.
#pragma once

#include <map>
#include <string>

#include "cortado/base/json.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/module.h"
#include "cortado/primitives/types.h"

namespace cortado {

// y += (alpha / rank) · B A x, with A [rank, in] ("down", initialised uniform in ±1/√in) and B [out, rank] ("up", 0).
class Lora : public Module {
 public:
  Lora(int64_t in, int64_t out, int64_t rank, double alpha);

  // x [..., in] -> [..., out], in x's type.
  Tensor forward(const Tensor& x) const;
  // Returns (alpha / rank) · B A, [out, in].
  Tensor product() const { return at::mm(up, down) * scale_; }

  Tensor down, up;

 private:
  double scale_;
};

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;
  std::vector<std::string> targets = {"q", "k", "v", "o"};  // names of the linear maps, in any module

  bool operator==(const LoraOptions&) const = default;
};
Json lora_json(const LoraOptions& options);
LoraOptions lora_options(const Json& json, const std::string& place);  // strict: unknown keys are errors

// InputError: no linear map has a target's name.
void check_lora_targets(const torch::nn::Module& module, const LoraOptions& options);
// Gives every linear map with one of these names an adapter; the parameters are "....lora.down" and "....lora.up".
// InputError: no linear map has a target's name, or a map has an adapter already.
void attach_lora(torch::nn::Module& module, const LoraOptions& options);

// Returns only the adapters' parameters, by their names in the module.
Parameters lora_weights(const torch::nn::Module& module);
// Returns named_weights() without the adapters, each merged into its map's weight; the module is unchanged.
NamedTensors merged_weights(const torch::nn::Module& module);

// Adds each adapter among `adapters` ("X.lora.down" and "X.lora.up") to "X.weight" of `weights`, in float32 and rounded
// to the weight's type. InputError: an adapter without a weight.
void merge_into(std::map<std::string, Tensor>& weights, const NamedTensors& adapters, const LoraOptions& options);

// Saves the adapters and their options as a file of their own; load_lora attaches them to a module without adapters.
// InputError: the file is damaged, or belongs to another model.
void save_lora(const std::string& path, const NamedTensors& adapters, const LoraOptions& options);
LoraOptions load_lora(const std::string& path, torch::nn::Module& module);

}  // namespace cortado
