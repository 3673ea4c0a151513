#include "cortado/nn/lora.h"

#include <algorithm>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/linear/op.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

constexpr const char* kLoraFormat = "cortado-lora";
const std::string kDown = ".lora.down", kUp = ".lora.up";

std::string last_name(const std::string& path) { return path.substr(path.find_last_of('.') + 1); }

// Returns the linear maps with their names in the module.
std::vector<std::pair<std::string, std::shared_ptr<Linear>>> linear_maps(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, std::shared_ptr<Linear>>> maps;
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    if (auto linear = std::dynamic_pointer_cast<Linear>(entry.value())) maps.emplace_back(entry.key(), linear);
  }
  return maps;
}

bool is_adapter(const std::string& name) { return name.ends_with(kDown) || name.ends_with(kUp); }

}  // namespace

Json lora_json(const LoraOptions& options) {
  return {{"rank", options.rank}, {"alpha", options.alpha}, {"targets", options.targets}};
}

LoraOptions lora_options(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  LoraOptions options;
  options.rank = reader.integer("rank", 1, 65536, options.rank);
  options.alpha = reader.number("alpha", 0, 1e9, options.alpha);
  const Json targets = reader.any("targets");
  if (!targets.is_null()) options.targets.clear();
  for (const Json& target : targets) {
    if (!target.is_string()) reader.fail("\"targets\" must be a list of names");
    options.targets.push_back(target.get<std::string>());
  }
  reader.finish();
  return options;
}

Lora::Lora(int64_t in, int64_t out, int64_t rank, double alpha)
    : Module("Lora"), scale_(alpha / static_cast<double>(rank)) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  register_parameter(down, "down", at::empty({rank, in}).uniform_(-bound, bound), Role::kMatrix);
  register_parameter(up, "up", at::zeros({out, rank}), Role::kMatrix);
}

Tensor Lora::forward(const Tensor& x) const {
  const Tensor narrow = linear_map(x.to(down.scalar_type()), down, std::nullopt);
  return (linear_map(narrow, up, std::nullopt) * scale_).to(x.scalar_type());
}

void check_lora_targets(const torch::nn::Module& module, const LoraOptions& options) {
  std::set<std::string> names;
  for (const auto& [name, linear] : linear_maps(module)) names.insert(last_name(name));
  const std::string others = joined({names.begin(), names.end()}, ", ");
  for (const std::string& target : options.targets) {
    fail_input_if(!names.contains(target), "[lora] the model has no linear map \"", target, "\"; it has ", others);
  }
}

void attach_lora(torch::nn::Module& module, const LoraOptions& options) {
  check_lora_targets(module, options);
  for (const auto& [name, linear] : linear_maps(module)) {
    if (std::find(options.targets.begin(), options.targets.end(), last_name(name)) == options.targets.end()) continue;
    linear->attach(std::make_shared<Lora>(linear->weight.size(1), linear->weight.size(0), options.rank, options.alpha));
  }
}

Parameters lora_weights(const torch::nn::Module& module) {
  Parameters found = parameters_of(module);
  std::erase_if(found, [](const Parameter& parameter) { return !is_adapter(parameter.name); });
  return found;
}

NamedTensors merged_weights(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> sums;
  for (const auto& [name, linear] : linear_maps(module)) {
    if (!linear->lora()) continue;
    const Tensor sum = linear->weight.to(at::kFloat) + linear->lora()->product().to(at::kFloat);
    sums[name + ".weight"] = sum.to(linear->weight.scalar_type());
  }
  NamedTensors weights;
  for (const auto& entry : named_weights(module)) {
    if (is_adapter(entry.key())) continue;
    const auto merged = sums.find(entry.key());
    weights.emplace_back(entry.key(), merged == sums.end() ? entry.value() : merged->second);
  }
  return weights;
}

void merge_into(std::map<std::string, Tensor>& weights, const NamedTensors& adapters, const LoraOptions& options) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Tensor> given(adapters.begin(), adapters.end());
  for (const auto& [name, down] : given) {
    if (!name.ends_with(kDown)) continue;
    const std::string map = name.substr(0, name.size() - kDown.size());
    const auto up = given.find(map + kUp);
    const auto weight = weights.find(map + ".weight");
    fail_input_if(up == given.end() || weight == weights.end(), "[lora] \"", map, "\" lacks a part");
    const Tensor product =
        at::mm(up->second.to(at::kFloat), down.to(at::kFloat)) * (options.alpha / static_cast<double>(options.rank));
    weight->second =
        (weight->second.to(at::kFloat) + product.to(weight->second.device())).to(weight->second.scalar_type());
  }
}

void save_lora(const std::string& path, const NamedTensors& adapters, const LoraOptions& options) {
  TensorFile file;
  for (const auto& [name, tensor] : adapters) file.tensors.emplace_back(name, tensor.detach());
  file.metadata = {{"format", kLoraFormat}, {"options", lora_json(options).dump()}};
  write_safetensors(path, file);
}

LoraOptions load_lora(const std::string& path, torch::nn::Module& module) {
  TensorFile file = read_safetensors(path);
  fail_input_if(file.metadata["format"] != kLoraFormat, "[", path, "] holds no adapters");
  const LoraOptions options = lora_options(parse_json(file.metadata["options"], path), path);
  attach_lora(module, options);
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> given(file.tensors.begin(), file.tensors.end());
  for (auto& [name, parameter, role] : lora_weights(module)) {
    const auto found = given.find(name);
    fail_input_if(found == given.end() || found->second.sizes() != parameter.sizes(), "[", path,
                  "] is of another model: \"", name, "\" is missing or of another size");
    Tensor(parameter).copy_(found->second);
    given.erase(found);
  }
  fail_input_if(!given.empty(), "[", path, "] is of another model: it also has \"",
                given.empty() ? "" : given.begin()->first, "\"");
  return options;
}

}  // namespace cortado
