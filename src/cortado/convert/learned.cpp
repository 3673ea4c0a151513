#include "cortado/convert/learned.h"

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/convert/weights.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/initialization.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "cortado-learned";
constexpr const char* kVersion = "1";
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
  file.metadata = {{"format", kFormat},
                   {"version", kVersion},
                   {"conversion", json_of(learned.conversion).dump()},
                   {"source", learned.source},
                   {"adapters", lora_json(learned.lora).dump()}};
  write_safetensors(path, file);
}

Learned load_learned(const std::string& path) {
  TensorFile file = read_safetensors(path);
  fail_input_if(file.metadata["format"] != kFormat || file.metadata["version"] != kVersion, "[", path,
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
  const Learned learned = load_learned(request.learned);
  const ModelConfig source = read_config(request.source);
  fail_input_if(!fs::is_directory(request.source), "[linearize] ", request.source, " is not a run with weights");
  check_apart(request.source, request.out);
  const ModelConfig config = converted_config(source, learned.conversion);
  TensorFile weights = source_weights(request.source, request.which, source, config);
  check_learned(learned, request.learned, config, weights.metadata["fingerprint"]);
  const auto tokenizer = load_tokenizer(request.source + "/tokenizer");
  const RunFolder folder{request.out};
  const RunLock lock(folder, request.use);
  describe_run(folder, tokenizer.get(), config.to_json());
  save_converted(config, weights, learned.weights, learned.adapters, learned.lora, folder.last(), {});
  save_learned(folder.learned(), learned);
}

}  // namespace cortado
