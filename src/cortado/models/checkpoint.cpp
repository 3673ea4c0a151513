#include "cortado/models/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/formats/gguf/file.h"
#include "cortado/models/classifier.h"
#include "cortado/models/narrow_weights.h"
#include "cortado/models/pretrained/folder.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/lora.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "cortado-model";

// Throws InputError for the first parameter that the file lacks or has in another shape, and, unless `more_allowed`,
// for the first tensor that is no parameter.
void check_names(const Backbone& model, const std::map<std::string, Tensor>& tensors, const std::string& path,
                 bool more_allowed) {
  const auto parameters = named_weights(model);
  const std::string where = concat("[checkpoint] ", path, " is the checkpoint of another model: ");
  for (const auto& parameter : parameters) {
    const auto found = tensors.find(parameter.key());
    fail_input_if(found == tensors.end(), where, "it has no \"", parameter.key(), "\"");
    fail_input_if(found->second.sizes() != parameter.value().sizes(), where, "\"", parameter.key(), "\" is ",
                  found->second.sizes(), ", expected ", parameter.value().sizes());
  }
  if (more_allowed) return;
  for (const auto& [name, tensor] : tensors) {
    fail_input_if(!parameters.contains(name), where, "it has a \"", name, "\" that the model lacks");
  }
}

// Copies and converts from the mapped file piece by piece: otherwise a large embedding would be in memory twice.
void copy_from_file(const Tensor& to, const Tensor& from, const TensorFile& file) {
  constexpr int64_t kPiece = 1 << 22;
  if (from.dim() == 0 || from.numel() == 0) {
    to.copy_(from);
    return;
  }
  const int64_t rows = from.size(0), most = std::max<int64_t>(1, kPiece * rows / static_cast<int64_t>(from.nbytes()));
  for (int64_t begin = 0; begin < rows; begin += most) {
    const Tensor piece = from.narrow(0, begin, std::min(most, rows - begin));
    to.narrow(0, begin, piece.size(0)).copy_(piece);
    release(file, piece);
  }
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

constexpr std::string_view kOthers = "/model.safetensors", kShards = "/model.safetensors.index.json";

// Returns RUN/best.safetensors or RUN/last.safetensors; if there is neither, RUN/model.safetensors or the index of its
// shards, as transformers writes them.
std::string weights_path(const std::string& run, const std::string& which) {
  fail_input_if(which != "best" && which != "last", "[checkpoint] expected \"best\" or \"last\", got \"", which, "\"");
  std::string wanted = run + "/" + which + ".safetensors";
  if (exists(wanted)) return wanted;
  std::string last = run + "/last.safetensors";
  for (const std::string_view others : {kOthers, kShards}) {
    if (!exists(last) && exists(concat(run, others))) return concat(run, others);
  }
  const auto narrow = exists(last) ? std::nullopt : narrow_format_of(run);
  fail_input_if(narrow.has_value(), "[checkpoint] ", run, " has its weights as ",
                weight_format_name(narrow.value_or(WeightFormat::kInt8)),
                " only, for inference: import the model without --weights for this");
  fail_input_if(!exists(last), "[checkpoint] ", run, " has no weights yet: there is no ", which, ".safetensors");
  return last;
}

// Completes a file that transformers wrote for one of our models (python/cortado/transformers.py). Its names have the
// prefix "model.", and it says nothing about the config, which is in a separate file, so only names and shapes can be
// checked.
void complete(TensorFile& file, const std::string& hash) {
  for (auto& [name, tensor] : file.tensors) {
    if (name.starts_with("model.")) name.erase(0, 6);
  }
  file.metadata["format"] = kFormat;
  file.metadata["config_hash"] = hash;
  file.metadata["fingerprint"] = content_hash(file.tensors);
}

TensorFile map_checkpoint(const std::string& path, const std::string& hash) {
  TensorFile file;
  if (path.ends_with(kShards)) {
    const auto tensors = folder_tensors(path.substr(0, path.size() - kShards.size()));
    file.tensors.assign(tensors.begin(), tensors.end());
    complete(file, hash);
  } else {
    file = map_safetensors(path);
    if (metadata_entry(file, "format") == "pt" && path.ends_with(kOthers)) complete(file, hash);
  }
  fail_input_if(metadata_entry(file, "format") != kFormat, "[checkpoint] ", path,
                " is not a checkpoint of a cortado model");
  return file;
}

void check_hash(const TensorFile& file, const std::string& hash, const std::string& path) {
  fail_input_if(metadata_entry(file, "config_hash") != hash, "[checkpoint] ", path,
                " is the checkpoint of another model: its config differs");
}

}  // namespace

void save_weights(const Backbone& model, const std::string& path, const std::map<std::string, std::string>& metadata) {
  fail_input_if(model.weight_format() != WeightFormat::kPlain, "[checkpoint] the model's weights are kept as ",
                weight_format_name(model.weight_format()), ", which is not what they were trained as: not saved");
  model.set_fingerprint(save_weights(model.config(), merged_weights(model), path, metadata));
}

std::string save_weights(const ModelConfig& config, NamedTensors weights, const std::string& path,
                         const std::map<std::string, std::string>& metadata) {
  TensorFile file{std::move(weights), metadata};
  const std::string fingerprint = content_hash(file.tensors);
  file.metadata["format"] = kFormat;
  file.metadata["config_hash"] = config.architecture_hash();
  file.metadata["fingerprint"] = fingerprint;
  write_safetensors(path, file);
  return fingerprint;
}

std::map<std::string, std::string> load_weights(const ModelConfig& config, Backbone& model, const std::string& path) {
  const std::string hash = config.architecture_hash();
  const TensorFile file = map_checkpoint(path, hash);
  const std::map<std::string, Tensor> tensors(file.tensors.begin(), file.tensors.end());
  check_names(model, tensors, path, /*more_allowed=*/hash != model.config().architecture_hash());
  check_hash(file, hash, path);
  const at::NoGradGuard no_grad;
  const auto matrices = model.matrices();
  auto parameters = named_weights(model);
  for (const auto& [name, tensor] : tensors) {
    const auto matrix = matrices.find(name);
    if (matrix != matrices.end() && matrix->second->packed()) {
      matrix->second->assign(tensor);
      release(file, tensor);
    } else if (const Tensor* parameter = parameters.find(name)) {
      copy_from_file(*parameter, tensor, file);
    }
  }
  model.set_fingerprint(metadata_entry(file, "fingerprint"));
  return file.metadata;
}

std::string metadata_entry(const TensorFile& file, const char* key) {
  const auto found = file.metadata.find(key);
  return found == file.metadata.end() ? std::string() : found->second;
}

void release(const TensorFile& file, const Tensor& read) {
  if (file.map) file.map->release(read.const_data_ptr(), read.nbytes());
}

TensorFile map_weights(const std::string& run, const std::string& which, const ModelConfig& config) {
  const std::string path = weights_path(run, which);
  TensorFile file = map_checkpoint(path, config.architecture_hash());
  check_hash(file, config.architecture_hash(), path);
  return file;
}

ModelConfig read_config(const std::string& run) {
  fail_input_if(!exists(run), "[checkpoint] there is no run or config ", run);
  const bool folder = is_folder(run);
  const std::string path = folder ? run + "/config.json" : run;
  fail_input_if(!exists(path), "[checkpoint] ", run, " is not a run: it has no config.json");
  // The program's commands import these files themselves. Callers of the library, such as Python, get an error that
  // says how.
  fail_input_if(!folder && is_gguf(path), "[checkpoint] ", path, " is a GGUF file: `cortado import` makes a run of it");
  const Json json = read_json_file(path);
  const bool foreign = json.is_object() && json.contains("model_type") && json["model_type"] != kModelType;
  fail_input_if(foreign, "[checkpoint] ", run, " is a model of transformers: `cortado import` makes a run of it");
  return ModelConfig::from_json(json, path);
}

std::shared_ptr<Backbone> make_backbone(const ModelConfig& config) {
  if (config.head.kind == HeadKind::kLanguage) return std::make_shared<LanguageModel>(config);
  return std::make_shared<Classifier>(config);
}

WeightFormat format_to_infer(const std::string& run, WeightFormat wanted) {
  const bool plain = exists(run + "/last.safetensors") || exists(concat(run, kOthers)) || exists(concat(run, kShards));
  return wanted == WeightFormat::kPlain && !plain ? narrow_format_of(run).value_or(wanted) : wanted;
}

std::shared_ptr<Backbone> open_backbone(const std::string& run, const OpenOptions& options) {
  const ModelConfig stored = read_config(run);
  const ModelConfig config = options.memory ? with_memory(stored, *options.memory) : stored;
  std::shared_ptr<Backbone> model;
  if (is_folder(run)) {
    const bool narrow = is_narrow(options.weights) && narrow_format_of(run) == options.weights;
    const std::string weights = narrow ? narrow_weights_path(run, options.weights) : weights_path(run, options.which);
    {
      const SkipInitialization skip;
      model = make_backbone(config);
    }
    // Converted to its type before the weights are loaded, so that loading needs no more memory than the model.
    model->to(options.device, options.dtype);
    model->set_weight_format(options.weights, /*keep_values=*/false);
    narrow ? load_narrow_weights(stored, *model, weights) : void(load_weights(stored, *model, weights));
  } else {
    fail_input_if(!options.allow_random, "[checkpoint] ", run, " is a config without weights; give a run's folder");
    model = make_backbone(config);
    model->to(options.device, options.dtype);
    model->set_weight_format(options.weights);
  }
  model->eval();
  return model;
}

std::shared_ptr<LanguageModel> open_model(const std::string& run, const OpenOptions& options) {
  fail_input_if(read_config(run).head.kind != HeadKind::kLanguage, "[checkpoint] ", run,
                " is a classifier: it gives classes, not the next token");
  return std::dynamic_pointer_cast<LanguageModel>(open_backbone(run, options));
}

}  // namespace cortado
