#include "cortado/models/narrow_weights.h"

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

constexpr const char* kNarrowFormat = "cortado-narrow-model";

// A packed matrix X has the tensors X.values, X.scales and perhaps X.offsets; other parameters have their names.
NamedTensors tensors_of(const Backbone& model) {
  NamedTensors tensors;
  const auto matrices = model.matrices();
  for (const auto& parameter : named_weights(model)) {
    const auto matrix = matrices.find(parameter.key());
    if (matrix == matrices.end() || !matrix->second->packed()) {
      tensors.emplace_back(parameter.key(), parameter.value());
      continue;
    }
    for (const auto& [part, tensor] : matrix->second->packed()->parts()) {
      tensors.emplace_back(concat(parameter.key(), ".", part), tensor);
    }
  }
  return tensors;
}

// The tensors of one parameter's name, by what follows it: "" for one that is not packed.
std::map<std::string, Tensor> parts_of(const std::map<std::string, Tensor>& tensors, const std::string& name) {
  std::map<std::string, Tensor> parts;
  for (const char* part : {"", ".values", ".scales", ".offsets"}) {
    const auto found = tensors.find(name + part);
    if (found != tensors.end()) parts.emplace(*part ? part + 1 : part, found->second);
  }
  return parts;
}

}  // namespace

std::string narrow_weights_path(const std::string& run, WeightFormat format) {
  return concat(run, "/last.", weight_format_name(format), ".safetensors");
}

std::optional<WeightFormat> narrow_format_of(const std::string& run) {
  std::error_code ignored;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    if (std::filesystem::exists(narrow_weights_path(run, format), ignored)) return format;
  }
  return std::nullopt;
}

void load_narrow_weights(const ModelConfig& config, Backbone& model, const std::string& path) {
  const TensorFile file = map_safetensors(path);
  const auto entry = [&](const char* key) { return metadata_entry(file, key); };
  fail_input_if(entry("format") != kNarrowFormat, "[checkpoint] ", path, " is not a model of 8 or 4 bits");
  const std::string other = concat("[checkpoint] ", path, " is the checkpoint of another model: ");
  fail_input_if(entry("config_hash") != config.architecture_hash(), other, "its config differs");
  fail_input_if(entry("weights") != weight_format_name(model.weight_format()), other,
                "its weights are of another format");
  const std::map<std::string, Tensor> tensors(file.tensors.begin(), file.tensors.end());
  const at::NoGradGuard no_grad;
  const auto matrices = model.matrices();
  size_t used = 0;
  for (const auto& parameter : named_weights(model)) {
    const std::string& name = parameter.key();
    const auto parts = parts_of(tensors, name);
    fail_input_if(parts.empty(), other, "it has no \"", name, "\"");
    used += parts.size();
    const auto matrix = matrices.find(name);
    if (matrix != matrices.end() && matrix->second->packed()) {
      matrix->second->packed()->assemble(parts);
      continue;
    }
    const auto whole = parts.find("");
    fail_input_if(whole == parts.end() || whole->second.sizes() != parameter.value().sizes(), other, "\"", name,
                  "\" is not ", parameter.value().sizes());
    Tensor(parameter.value()).copy_(whole->second);
    file.map->release(whole->second.const_data_ptr(), whole->second.nbytes());
  }
  const bool same = config.architecture_hash() == model.config().architecture_hash();
  fail_input_if(same && used != tensors.size(), other, "it has tensors that the model lacks");
  model.set_fingerprint(entry("fingerprint"));
}

NarrowWeights::NarrowWeights(WeightFormat format) : format_(format) {
  fail_input_if(!is_narrow(format), "[weights] int8 and int4 are the formats of such files");
}

void NarrowWeights::take(const ModelConfig& config, const std::string& name, const Tensor& weight) {
  if (!model_) {
    const SkipInitialization skip;
    model_ = make_backbone(config);
    model_->set_weight_format(format_, /*keep_values=*/false);
    matrices_ = model_->matrices();
  }
  const at::NoGradGuard no_grad;
  const auto matrix = matrices_.find(name);
  if (matrix != matrices_.end()) return matrix->second->assign(weight);
  const auto parameters = named_weights(*model_);
  const Tensor* parameter = parameters.find(name);
  fail_input_if(!parameter || parameter->sizes() != weight.sizes(), "[weights] the model has no \"", name, "\" of ",
                weight.sizes());
  Tensor(*parameter).copy_(weight);
}

void NarrowWeights::save(const std::string& run, const std::string& origin) const {
  fail_input_if(!model_, "[weights] there are no parameters");
  TensorFile file{.tensors = tensors_of(*model_), .metadata = {{"origin", origin}}};
  file.metadata["format"] = kNarrowFormat;
  file.metadata["weights"] = weight_format_name(format_);
  file.metadata["config_hash"] = model_->config().architecture_hash();
  file.metadata["fingerprint"] = content_hash(file.tensors);
  write_safetensors(narrow_weights_path(run, format_), file);
}

int64_t NarrowWeights::bytes() const { return model_ ? model_->weight_bytes() : 0; }

}  // namespace cortado
