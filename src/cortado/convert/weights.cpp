#include "cortado/convert/weights.h"

#include <set>

#include "cortado/base/error.h"
#include "cortado/base/random.h"
#include "cortado/mechanisms/student.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

// Names of what the mixers have besides the layers that they replace.
std::set<std::string> names_of_new_weights(const LanguageModel& model) {
  std::set<std::string> names;
  for (size_t layer = 0; layer < model.mixers().size(); ++layer) {
    const auto* student = dynamic_cast<const SoftmaxStudent*>(model.mixers()[layer].get());
    if (!student) continue;
    for (const std::string& name : student->learned()) names.insert(concat("layers.", layer, ".mixer.", name));
  }
  return names;
}

}  // namespace

std::shared_ptr<LanguageModel> converted_model(const ModelConfig& config, const TensorFile& source, int64_t seed,
                                               const at::TensorOptions& options) {
  at::manual_seed(RandomStream(static_cast<uint64_t>(seed), "weights").bits(0));
  auto model = std::make_shared<LanguageModel>(config);
  const std::set<std::string> added = names_of_new_weights(*model);
  const std::map<std::string, Tensor> given(source.tensors.begin(), source.tensors.end());
  const at::NoGradGuard no_grad;
  for (auto& entry : named_weights(*model)) {
    Tensor& weight = entry.value();
    if (added.contains(entry.key())) {
      weight.set_data(weight.to(options.device(), at::kFloat));
      continue;
    }
    const auto found = given.find(entry.key());
    fail_input_if(found == given.end(), "[linearize] the model has no \"", entry.key(), "\"");
    fail_input_if(found->second.sizes() != weight.sizes(), "[linearize] \"", entry.key(), "\" is ",
                  found->second.sizes(), ", expected ", weight.sizes());
    // A copy also where nothing is to be converted: the map is read-only, and its pages are given back.
    weight.set_data(found->second.to(options, /*non_blocking=*/false, /*copy=*/true));
    source.map->release(found->second.const_data_ptr(), found->second.nbytes());
  }
  model->eval();
  return model;
}

void save_converted(const ModelConfig& config, const TensorFile& source, const NamedTensors& learned,
                    const std::string& path, const std::map<std::string, std::string>& metadata) {
  std::map<std::string, Tensor> changed;
  for (const auto& [name, tensor] : learned) changed[name] = tensor.detach().cpu();
  NamedTensors weights;
  for (const auto& [name, tensor] : source.tensors) {
    const auto found = changed.find(name);
    weights.emplace_back(name, found == changed.end() ? tensor : found->second);
    if (found != changed.end()) changed.erase(found);
  }
  for (const auto& entry : changed) weights.push_back(entry);
  save_weights(config, std::move(weights), path, metadata);
  for (const auto& [name, tensor] : source.tensors) source.map->release(tensor.const_data_ptr(), tensor.nbytes());
}

}  // namespace cortado
