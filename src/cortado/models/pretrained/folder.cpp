#include "cortado/models/pretrained/folder.h"

#include <filesystem>
#include <regex>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/formats/safetensors.h"

namespace cortado {
namespace {

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

using NamedViews = std::map<std::string, Tensor>;  // views of the mapped files

// `wanted`: the tensors that the index assigns to this file; null: all of them.
void add_file(const std::string& path, const std::set<std::string>* wanted, NamedViews& tensors) {
  const TensorFile file = map_safetensors(path);
  for (const auto& [name, tensor] : file.tensors) {
    if (!wanted || wanted->contains(name)) tensors[name] = tensor;
  }
  if (!wanted) return;
  for (const std::string& name : *wanted) {
    fail_input_if(!tensors.contains(name), "[import] ", path, " lacks \"", name, "\", which the index says it has");
  }
}

void add_shards(const std::string& folder, const std::string& index, NamedViews& tensors) {
  JsonReader reader(read_json_file(index), index);
  const Json map = reader.object("weight_map");
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, shard] : map.items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    reader.fail_if(file.empty() || file.find('/') != std::string::npos, "\"weight_map\" must give a file's name for \"",
                   name, "\", got ", shard.dump());
    shards[file].insert(name);
  }
  for (const auto& [file, names] : shards) {
    fail_input_if(!is_there(folder + "/" + file), "[import] ", folder, " lacks the shard ", file,
                  ", which its index names");
    add_file(folder + "/" + file, &names, tensors);
  }
}

// The Python that writes the tensors of a file in PyTorch's own format to model.safetensors.
std::string lines_that_convert(const std::string& folder, const std::string& file) {
  return concat(
      "import torch; from safetensors.torch import save_file; save_file({k: v.contiguous().clone() for k, v in "
      "torch.load(\"",
      folder, "/", file, "\", map_location=\"cpu\", weights_only=True).items()}, \"", folder, "/model.safetensors\")");
}

// Says how to get safetensors, if the folder has the weights in PyTorch's own format. transformers knows the models
// whose config has a type; mamba_ssm's are one file.
void refuse_pickled(const std::string& folder) {
  const bool one = is_there(folder + "/pytorch_model.bin");
  if (!one && !is_there(folder + "/pytorch_model.bin.index.json")) return;
  const std::string begin = concat("[import] ", folder, " has its weights in pytorch_model.bin, which is not read. In ",
                                   "Python, these lines write model.safetensors: ");
  const bool typed = folder_config(folder).contains("model_type");
  fail_input_if(typed || !one, begin, "from transformers import AutoModelForCausalLM; ",
                "AutoModelForCausalLM.from_pretrained(\"", folder, "\", dtype=\"auto\").save_pretrained(\"", folder,
                "\", safe_serialization=True)");
  fail_input_if(true, begin, lines_that_convert(folder, "pytorch_model.bin"));
}

}  // namespace

Json folder_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  static const std::regex infinity(R"(([\[,:\s]-?)Infinity)");
  return parse_json(std::regex_replace(read_file(path), infinity, "$011e308"), path);
}

std::map<std::string, Tensor> folder_tensors(const std::string& folder) {
  NamedViews tensors;
  const std::string index = folder + "/model.safetensors.index.json", single = folder + "/model.safetensors";
  if (is_there(index)) {
    add_shards(folder, index, tensors);
  } else {
    if (!is_there(single)) refuse_pickled(folder);
    fail_input_if(!is_there(single), "[import] ", folder, " has no model.safetensors and no ",
                  "model.safetensors.index.json; other kinds of weights are not read");
    add_file(single, nullptr, tensors);
  }
  return tensors;
}

std::map<std::string, Tensor> bare_tensors(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored) || is_there(folder + "/config.json")) return {};
  std::vector<std::filesystem::path> found, pickled;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string kind = entry.path().extension().string();
    if (kind == ".safetensors" || kind == ".st") found.push_back(entry.path());
    if (kind == ".pth") pickled.push_back(entry.path());
  }
  if (found.empty() && pickled.size() == 1) {
    const std::string name = pickled.front().filename().string();
    fail_input_if(true, "[import] ", folder, " has its weights in ", name,
                  ", which is not read. In Python, these lines ",
                  "write model.safetensors: ", lines_that_convert(folder, name));
  }
  NamedViews tensors;
  if (found.size() == 1) add_file(found.front().string(), nullptr, tensors);
  return tensors;
}

}  // namespace cortado
