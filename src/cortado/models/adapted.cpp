#include "cortado/models/adapted.h"

#include <cmath>
#include <filesystem>
#include <regex>
#include <set>

#include "cortado/base/error.h"
#include "cortado/nn/lora.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

struct Adapters {
  LoraOptions options;
  NamedTensors tensors;  // by our names
};

// "layers.3.mixer.q.lora.down" of "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"; a name of ours in
// peft's form stays. Returns "" for other tensors.
std::string our_name(const std::string& theirs) {
  static const std::regex form(R"((?:.*\.)?(layers\.\d+)\.(.+)\.lora_([AB])(?:\.default)?\.weight)");
  static const std::regex decoder(R"((self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj)");
  std::smatch found, part;
  if (!std::regex_match(theirs, found, form)) return "";
  std::string map = found[2];
  if (std::regex_match(map, part, decoder)) {
    map = concat(part[1] == "mlp" ? "feed_forward." : "mixer.", part[2].str());
  }
  return concat(found[1].str(), ".", map, found[3] == "A" ? ".lora.down" : ".lora.up");
}

Adapters read_peft(const std::string& folder) {
  JsonReader config(read_json_file(folder + "/adapter_config.json"), folder + "/adapter_config.json");
  const std::string type = config.text("peft_type");
  config.fail_if(type != "LORA", "\"peft_type\" is \"", type, "\", and only LORA is supported");
  for (const char* key : {"use_dora", "use_qalora", "fan_in_fan_out", "lora_bias"}) {
    config.fail_if(config.any(key) == true, "\"", key, "\" is not supported");
  }
  for (const char* key : {"rank_pattern", "alpha_pattern", "modules_to_save", "trainable_token_indices"}) {
    const Json given = config.any(key);
    config.fail_if(!given.is_null() && !given.empty(), "\"", key, "\" is not supported");
  }
  Adapters read;
  read.options.rank = config.integer("r", 1, 65536);
  read.options.alpha = config.number("lora_alpha", 0, 1e9);
  // alpha / √rank in place of alpha / rank
  if (config.any("use_rslora") == true) read.options.alpha *= std::sqrt(static_cast<double>(read.options.rank));
  std::set<std::string> targets;
  const std::string path = folder + "/adapter_model.safetensors";
  for (auto& [name, tensor] : read_safetensors(path).tensors) {
    const std::string ours = our_name(name);
    fail_input_if(ours.empty(), "[", path, "] \"", name, "\" is no low-rank adapter of a layer's linear map");
    const std::string map = ours.substr(0, ours.find(".lora."));
    targets.insert(map.substr(map.find_last_of('.') + 1));
    read.tensors.emplace_back(ours, tensor);
  }
  read.options.targets.assign(targets.begin(), targets.end());
  return read;
}

// Attaches the adapters; maps without one of their own add nothing.
void attach(LanguageModel& model, const Adapters& adapters, const std::string& folder) {
  attach_lora(model, adapters.options);
  std::map<std::string, Tensor> given(adapters.tensors.begin(), adapters.tensors.end());
  for (auto& [name, parameter, role] : lora_weights(model)) {
    const auto found = given.find(name);
    if (found == given.end()) continue;
    fail_input_if(found->second.sizes() != parameter.sizes(), "[", folder, "] is of another model: \"", name, "\" is ",
                  found->second.sizes(), ", expected ", parameter.sizes());
    Tensor(parameter).copy_(found->second);
    given.erase(found);
  }
  fail_input_if(!given.empty(), "[", folder, "] is of another model: it also has \"",
                given.empty() ? "" : given.begin()->first, "\"");
}

// Attaches the adapters of a folder or file. Returns a hash of them.
std::string attach(LanguageModel& model, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::exists(path + "/adapter_config.json", ignored)) {
    const Adapters adapters = read_peft(path);
    attach(model, adapters, path);
    return content_hash(adapters.tensors);
  }
  const std::string file = fs::is_directory(path, ignored) ? path + "/lora.safetensors" : path;
  fail_input_if(!fs::exists(file, ignored), "[lora] ", path, " has no lora.safetensors and no adapter_config.json");
  load_lora(file, model);
  return content_hash(tensors_of(lora_weights(model)));
}

// Makes the parameters and buffers of `model` those of `base`.
void share_weights(LanguageModel& model, const LanguageModel& base) {
  auto weights = named_weights(model);
  for (const auto& entry : named_weights(base)) {
    if (!entry.value().is_meta()) weights[entry.key()].set_data(entry.value());
  }
  const auto theirs = base.matrices();
  for (const auto& [name, matrix] : model.matrices()) {
    if (matrix->packed()) *matrix->packed() = *theirs.at(name)->packed();  // the same storage
  }
}

}  // namespace

std::shared_ptr<LanguageModel> with_adapters(const LanguageModel& base, const std::string& path) {
  const at::NoGradGuard no_grad;
  std::shared_ptr<LanguageModel> model;
  {
    const SkipInitialization skip;
    model = std::make_shared<LanguageModel>(base.config());
  }
  const std::string hash = attach(*model, path);
  model->to(base.device(), base.dtype());
  model->set_weight_format(base.weight_format(), /*keep_values=*/false);
  if (base.cache_type()) model->set_cache_type(*base.cache_type());
  share_weights(*model, base);
  model->set_fingerprint(concat(base.identity(), "-", hash));
  model->eval();
  return model;
}

}  // namespace cortado
