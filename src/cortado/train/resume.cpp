#include "cortado/train/resume.h"

#include <set>

#include "cortado/base/error.h"
#include "cortado/formats/safetensors.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

constexpr const char* kFormat = "cortado-trainer";
constexpr const char* kTrainerVersion = "1";
const std::string kModelPrefix = "model.";

// Infinity has no JSON form: null stands for it.
Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double number_or_infinity(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::infinity();
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
  fail_input_if(!given.empty(), "[", path, "] checkpoint of another model: it also has \"", given.begin()->first, "\"");
}

}  // namespace

Json TrainerState::to_json() const {
  Json json = {{"step", step},
               {"tokens", tokens},
               {"data", data.to_json()},
               {"data_tokens", read.tokens},
               {"data_fingerprint", read.fingerprint},
               {"best_loss", finite_or_null(best_loss)},
               {"best_step", best_step},
               {"validation_loss", finite_or_null(validation_loss)},
               {"validated_step", validated_step},
               {"seconds", seconds}};
  if (reached) json["reached"] = *reached;
  return json;
}

TrainerState TrainerState::from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  TrainerState state;
  state.step = reader.integer("step", 0, kMost);
  state.tokens = reader.integer("tokens", 0, kMost);
  state.data = DataPosition::from_json(reader.object("data"), place + ".data");
  state.read.tokens = reader.integer("data_tokens", 0, kMost);
  state.read.fingerprint = reader.text("data_fingerprint");
  state.best_loss = number_or_infinity(reader.any("best_loss"));
  state.best_step = reader.integer("best_step", 0, kMost);
  state.validation_loss = number_or_infinity(reader.any("validation_loss"));
  state.validated_step = reader.integer("validated_step", 0, kMost);
  // Earlier versions wrote only that a target was reached.
  const Json score = reader.any("reached");
  if (score.is_boolean()) state.reached = std::numeric_limits<double>::infinity();
  if (!score.is_boolean()) state.reached = reader.optional_number("reached", -1e300, 1e300);
  state.seconds = reader.number("seconds", 0, std::numeric_limits<double>::max());
  reader.finish();
  return state;
}

void save_trainer(const std::string& path, const Backbone& model, const AdamW& optimizer, const TrainerState& state,
                  const Json& about) {
  check_finite(model, state.step);
  TensorFile file;
  for (const auto& entry : named_weights(model)) {
    file.tensors.emplace_back(kModelPrefix + entry.key(), entry.value().detach());
  }
  for (const auto& moment : optimizer.moments()) file.tensors.push_back(moment);
  file.metadata = {{"format", kFormat},
                   {"version", kTrainerVersion},
                   {"state", state.to_json().dump()},
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
  const auto state = TrainerState::from_json(parse_json(metadata(file, "state", path), path), path);
  load_parameters(file, path, model);
  std::vector<std::pair<std::string, Tensor>> moments;
  for (const auto& entry : file.tensors) {
    if (!entry.first.starts_with(kModelPrefix)) moments.push_back(entry);
  }
  optimizer.restore(moments, state.step);
  return state;
}

}  // namespace cortado
