#include "cortado/convert/weights.h"

#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/random.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/nn/weights.h"

namespace cortado {

void check_apart(const std::string& source, const std::string& out) {
  fail_input_if(std::filesystem::exists(out) && std::filesystem::equivalent(source, out), "[--out] ", out,
                " is the model that is to be converted: the result needs a folder of its own");
}

std::vector<std::string> names_of_new_weights(const LanguageModel& model) {
  std::vector<std::string> names;
  for (size_t layer = 0; layer < model.mixers().size(); ++layer) {
    const SoftmaxStudent* student = student_of(*model.mixers()[layer]);
    if (!student) continue;
    for (const std::string& name : student->learned()) names.push_back(concat("layers.", layer, ".mixer.", name));
  }
  return names;
}

TensorFile source_weights(const std::string& run, const std::string& which, const ModelConfig& source,
                          const ModelConfig& converted) {
  TensorFile file = map_weights(run, which, source);
  std::vector<std::pair<std::string, std::string>> renamed;
  for (size_t i = 0; i < source.layers.size(); ++i) {
    if (source.layers[i]["mixer"] == converted.layers[i]["mixer"]) continue;
    const auto& substitute = find_mechanism(converted.layers[i]["mixer"]).substitute;
    if (!substitute) continue;
    const std::string place = concat("layers.", i, ".mixer.");
    for (const auto& [from, to] : substitute->renamed) renamed.emplace_back(place + from + ".", place + to + ".");
  }
  for (auto& [name, tensor] : file.tensors) {
    for (const auto& [from, to] : renamed) {
      if (name.starts_with(from)) name = to + name.substr(from.size());
    }
  }
  return file;
}

std::shared_ptr<LanguageModel> converted_model(const ModelConfig& config, const TensorFile& source, int64_t seed,
                                               const at::TensorOptions& options, WeightFormat frozen) {
  at::manual_seed(RandomStream(static_cast<uint64_t>(seed), "weights").bits(0));
  auto model = std::make_shared<LanguageModel>(config);
  const auto names = names_of_new_weights(*model);
  const std::set<std::string> added(names.begin(), names.end());
  const auto matrices = model->matrices();
  const std::map<std::string, Tensor> given(source.tensors.begin(), source.tensors.end());
  const at::NoGradGuard no_grad;
  for (auto& entry : named_weights(*model)) {
    Tensor& weight = entry.value();
    const auto found = given.find(entry.key());
    const bool learned = added.contains(entry.key());
    if (learned && found == given.end()) {
      weight.set_data(weight.to(options.device(), at::kFloat));
      continue;
    }
    fail_input_if(found == given.end(), "[linearize] the model has no \"", entry.key(), "\"");
    fail_input_if(found->second.sizes() != weight.sizes(), "[linearize] \"", entry.key(), "\" is ",
                  found->second.sizes(), ", expected ", weight.sizes());
    // A copy also where nothing is to be converted: the map is read-only, and its pages are given back.
    const auto type = learned ? options.dtype(at::kFloat) : options;  // of a student that has learned before
    weight.set_data(found->second.to(type, /*non_blocking=*/false, /*copy=*/true));
    source.map->release(found->second.const_data_ptr(), found->second.nbytes());
    const auto matrix = matrices.find(entry.key());
    if (!learned && matrix != matrices.end() && entry.key().starts_with("layers.")) {
      matrix->second->set_format(frozen, /*keep_values=*/true);
    }
  }
  model->eval();
  return model;
}

void save_converted(const ModelConfig& config, const TensorFile& source, const NamedTensors& learned,
                    const NamedLora& adapters, const LoraOptions& lora, const std::string& path,
                    const std::map<std::string, std::string>& metadata) {
  std::map<std::string, Tensor> weights(source.tensors.begin(), source.tensors.end());
  for (const auto& [name, tensor] : learned) weights[name] = tensor.detach().cpu();
  merge_into(weights, adapters, lora);
  save_weights(config, {weights.begin(), weights.end()}, path, metadata);
  for (const auto& [name, tensor] : source.tensors) source.map->release(tensor.const_data_ptr(), tensor.nbytes());
}

}  // namespace cortado
