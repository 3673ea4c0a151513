#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/signals.h"
#include "cortado/base/utf8.h"
#include "cortado/models/checkpoint.h"
#include "cortado/models/pretrained/pretrained.h"

namespace cortado {

namespace {

// Every parameter is there with its shape, and nothing else.
void check_tensors(const PretrainedSource& source) {
  const std::string where = concat("[import] ", source.decoder().source, ": ");
  std::set<std::string> used;
  visit_weights(source.decoder(), [&](const PretrainedWeight& weight) {
    const std::string name = source.name_of(weight);
    const auto found = source.shapes().find(name);
    fail_input_if(found == source.shapes().end(), where, "there is no tensor \"", name, "\"");
    fail_input_if(found->second != weight.shape, where, "tensor \"", name, "\" is ", at::IntArrayRef(found->second),
                  ", expected ", at::IntArrayRef(weight.shape));
    used.insert(name);
  });
  for (const auto& [name, shape] : source.shapes()) {
    fail_input_if(!used.contains(name) && !source.is_idle(name), where, "tensor ", printable(name),
                  " belongs to no part of this architecture that is supported");
  }
}

}  // namespace

std::unique_ptr<PretrainedSource> open_pretrained(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fail_input_if(!fs::exists(path, ignored), "[import] there is no ", path);
  if (!fs::is_directory(path, ignored)) {
    fail_input_if(!is_gguf(path), "[import] ", path,
                  " is not a GGUF file; a Hugging Face model is given as its folder");
    return open_gguf(std::make_shared<const GgufFile>(path));
  }
  fail_input_if(!fs::exists(path + "/config.json", ignored), "[import] ", path,
                " has no config.json: it is not the folder of a Hugging Face model");
  return open_hugging_face(path);
}

PretrainedModel read_pretrained(const PretrainedSource& source, std::optional<at::ScalarType> dtype) {
  PretrainedDecoder decoder = source.decoder();
  if (utf8_valid_prefix(decoder.name) != decoder.name.size()) decoder.name = "imported";
  fail_input_if(decoder.heads % decoder.kv_heads != 0, "[import] ", decoder.source, ": ", decoder.heads,
                " heads are not a multiple of ", decoder.kv_heads, " key heads");
  check_tensors(source);
  PretrainedModel model{decoder.config(), {}};
  visit_weights(decoder, [&](const PretrainedWeight& weight) {
    if (interrupt_requested()) throw Failure(concat("[import] ", decoder.source, ": stopped"));
    const Tensor tensor = source.read(weight);
    model.weights.emplace_back(weight.name, dtype ? tensor.to(*dtype) : tensor);
  });
  return model;
}

void write_pretrained(const PretrainedModel& model, const std::string& run, const std::string& origin) {
  save_weights(model.config, model.weights, run + "/last.safetensors", {{"origin", origin}});
  write_file(run + "/config.json", model.config.to_json().dump(2) + "\n");
}

}  // namespace cortado
