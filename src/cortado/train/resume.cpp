#include "cortado/train/resume.h"

#include "cortado/base/error.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

constexpr const char* kFormat = "cortado-trainer";
constexpr const char* kTrainerVersion = "1";
const std::string kModelPrefix = "model.";

// Earlier versions stored a boolean, not the score that was reached.
TrainerState state_of(Json json, const std::string& path) {
  const bool reached = json.is_object() && json.value("reached", Json()).is_boolean();
  if (reached) json.erase("reached");
  auto state = from_fields<TrainerState>(json, path, /*required=*/true);
  if (reached) state.reached = std::numeric_limits<double>::infinity();
  return state;
}

void check_finite(const Backbone& model, int64_t step) {
  for (const auto& entry : model.named_parameters()) {
    if (!at::isfinite(entry.value()).all().item<bool>()) {
      throw Failure(concat("[train] the weights \"", entry.key(), "\" are not finite after step ", step,
                           "; the last good checkpoint is kept"));
    }
  }
}

std::string metadata(const TensorFile& file, const std::string& key, const std::string& path) {
  const auto found = file.metadata.find(key);
  fail_input_if(found == file.metadata.end(), "[", path, "] is not a trainer checkpoint: no \"", key, "\"");
  return found->second;
}

void load_parameters(const TensorFile& file, const std::string& path, Backbone& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, Tensor> given;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with(kModelPrefix)) given[name.substr(kModelPrefix.size())] = tensor;
  }
  for (auto& entry : named_weights(model)) {
    const auto found = given.find(entry.key());
    fail_input_if(found == given.end(), "[", path, "] checkpoint of another model: it has no \"", entry.key(), "\"");
    fail_input_if(found->second.sizes() != entry.value().sizes(), "[", path, "] checkpoint of another model: \"",
                  entry.key(), "\" is ", found->second.sizes(), ", expected ", entry.value().sizes());
    entry.value().copy_(found->second);
    given.erase(found);
  }
  if (given.empty()) return;
  throw InputError(concat("[", path, "] checkpoint of another model: it also has \"", given.begin()->first, "\""));
}

}  // namespace

void TrainerState::fields(JsonFields& json) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  json.integer("step", step, 0, kMost);
  json.integer("tokens", tokens, 0, kMost);
  json.object("data", [&](JsonFields& inner) { data.fields(inner); });
  json.integer("data_tokens", read.tokens, 0, kMost);
  json.text("data_fingerprint", read.fingerprint);
  json.limit("best_loss", best_loss);
  json.integer("best_step", best_step, 0, kMost);
  json.limit("validation_loss", validation_loss);
  json.integer("validated_step", validated_step, 0, kMost);
  json.number("seconds", seconds, 0, std::numeric_limits<double>::max());
  if (json.reading() || reached) json.optional_number("reached", reached, -1e300, 1e300);
}

void save_trainer(const std::string& path, const Backbone& model, const NamedTensors& moments,
                  const TrainerState& state, const Json& about) {
  check_finite(model, state.step);
  TensorFile file;
  for (const auto& entry : named_weights(model)) {
    file.tensors.emplace_back(kModelPrefix + entry.key(), entry.value().detach());
  }
  file.tensors.insert(file.tensors.end(), moments.begin(), moments.end());
  file.metadata = {{"format", kFormat},
                   {"version", kTrainerVersion},
                   {"state", json_of(state).dump()},
                   {"about", about.dump()},
                   {"matmul", matmul_library()}};
  write_safetensors(path, file);
}

TrainerState load_trainer(const std::string& path, Backbone& model, AdamW& optimizer) {
  const TensorFile file = read_safetensors(path);
  fail_input_if(metadata(file, "format", path) != kFormat, "[", path, "] is not a trainer checkpoint");
  fail_input_if(metadata(file, "version", path) != kTrainerVersion, "[", path, "] has version ",
                metadata(file, "version", path), ", this program reads version ", kTrainerVersion);
  if (file.metadata.contains("matmul")) keep_matmul_library(file.metadata.at("matmul"));
  const TrainerState state = state_of(parse_json(metadata(file, "state", path), path), path);
  load_parameters(file, path, model);
  NamedTensors moments;
  for (const auto& entry : file.tensors) {
    if (!entry.first.starts_with(kModelPrefix)) moments.push_back(entry);
  }
  optimizer.restore(moments, state.step);
  return state;
}

}  // namespace cortado
