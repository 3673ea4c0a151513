#include "cortado/convert/weights.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/random.h"
#include "cortado/formats/safetensors.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/weights.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

void check_apart(const std::string& source, const std::string& out) {
  fail_input_if(std::filesystem::exists(out) && std::filesystem::equivalent(source, out), "[--out] ", out,
                " is the model that is to be converted: the result needs a folder of its own");
}

CacheNames cache_names(int64_t layer) {
  const std::string place = concat("layers.", layer, ".mixer.");
  return {place + "score_weight", place + "score_bias"};
}

bool is_score(const std::string& name) { return name.ends_with(".score_weight") || name.ends_with(".score_bias"); }

bool have_scores(const NamedTensors& weights) {
  return std::ranges::any_of(weights, [](const auto& it) { return is_score(it.first); });
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
    // Copied even if the type does not change: the map is read-only, and its pages are released.
    const auto type = learned ? options.dtype(at::kFloat) : options;  // learned: of a student that has learned before
    weight.set_data(found->second.to(type, /*non_blocking=*/false, /*copy=*/true));
    release(source, found->second);
    const auto matrix = matrices.find(entry.key());
    if (!learned && matrix != matrices.end() && entry.key().starts_with("layers.")) {
      matrix->second->set_format(frozen, /*keep_values=*/true);
    }
  }
  model->eval();
  return model;
}

void save_converted(const ModelConfig& config, const TensorFile& source, const NamedTensors& learned,
                    const NamedTensors& adapters, const LoraOptions& lora, const std::string& path,
                    const std::map<std::string, std::string>& metadata) {
  std::map<std::string, Tensor> weights(source.tensors.begin(), source.tensors.end());
  for (const auto& [name, tensor] : learned) weights[name] = tensor.detach().cpu();
  merge_into(weights, adapters, lora);
  save_weights(config, {weights.begin(), weights.end()}, path, metadata);
  for (const auto& [name, tensor] : source.tensors) release(source, tensor);
}

namespace {

constexpr const char* kLearnedFormat = "cortado-learned";
constexpr const char* kLearnedVersion = "1";
const std::string kAdapter = ".lora.";

Tensor shortened(const Tensor& x) {
  const Tensor half = x.detach().cpu().to(at::kHalf);
  return half.isfinite().all().item<bool>() ? half : x.detach().cpu().to(at::kFloat);
}

}  // namespace

void save_learned(const std::string& path, const Learned& learned) {
  TensorFile file;
  for (const auto& [name, tensor] : learned.weights) file.tensors.emplace_back(name, shortened(tensor));
  for (const auto& [name, tensor] : learned.adapters) file.tensors.emplace_back(name, shortened(tensor));
  file.metadata = {{"format", kLearnedFormat},
                   {"version", kLearnedVersion},
                   {"conversion", json_of(learned.conversion).dump()},
                   {"source", learned.source},
                   {"adapters", lora_json(learned.lora).dump()}};
  write_safetensors(path, file);
}

Learned load_learned(const std::string& path) {
  TensorFile file = read_safetensors(path);
  fail_input_if(file.metadata["format"] != kLearnedFormat || file.metadata["version"] != kLearnedVersion, "[", path,
                "] is no learned.safetensors of a conversion");
  Learned learned;
  learned.conversion = from_fields<ConversionSettings>(parse_json(file.metadata["conversion"], path), path);
  learned.source = file.metadata["source"];
  learned.lora = lora_options(parse_json(file.metadata["adapters"], path), path);
  for (const auto& [name, tensor] : file.tensors) {
    const bool adapter = name.find(kAdapter) != std::string::npos;
    (adapter ? learned.adapters : learned.weights).emplace_back(name, tensor.to(at::kFloat));
  }
  return learned;
}

void check_learned(const Learned& learned, const std::string& path, const ModelConfig& converted,
                   const std::string& fingerprint) {
  fail_input_if(learned.source != fingerprint, "[", path, "] was learned on other weights than the model has");
  const SkipInitialization skip;
  LanguageModel model(converted);
  if (!learned.adapters.empty()) attach_lora(model, learned.lora);
  const auto parameters = model.named_parameters();
  for (const auto* tensors : {&learned.weights, &learned.adapters}) {
    for (const auto& [name, tensor] : *tensors) {
      const Tensor* weight = parameters.find(name);
      fail_input_if(!weight || weight->sizes() != tensor.sizes(), "[", path, "] has \"", name, "\" of ", tensor.sizes(),
                    ", which the converted model does not");
    }
  }
}

void apply_learned(const ApplyRequest& request) {
  Learned learned = load_learned(request.learned);
  learned.conversion.mixer.update(request.settings);
  const ModelConfig source = read_config(request.source);
  fail_input_if(!std::filesystem::is_directory(request.source), "[linearize] ", request.source,
                " is not a run with weights");
  check_apart(request.source, request.out);
  const ModelConfig config = converted_config(source, learned.conversion);
  TensorFile weights = source_weights(request.source, request.which, source, config);
  check_learned(learned, request.learned, config, weights.metadata["fingerprint"]);
  const auto tokenizer = load_tokenizer(request.source + "/tokenizer");
  const RunFolder folder{request.out};
  const RunLock lock(folder, request.use);
  describe_run(folder, tokenizer.get(), config.to_json(), request.source);
  save_converted(config, weights, learned.weights, learned.adapters, learned.lora, folder.last(), {});
  save_learned(folder.learned(), learned);
}

}  // namespace cortado
