#include "cortado/generate/defaults.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/formats/gguf/file.h"

namespace cortado {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// The defaults of llama.cpp's common_params_sampling.
const SamplingChoice kLlamaCpp = {.temperature = 0.8, .top_p = 0.95, .min_p = 0.05, .top_k = 40};

std::string place_of(const std::string& folder) { return folder + "/generation_config.json"; }

Json read_object(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json::object();
  Json json = read_json_file(path);
  fail_input_if(!json.is_object(), "[", path, "] expected an object { ... }");
  return json;
}

// Rounds 32-bit numbers to the decimals that they were written with: 0.8, not 0.800000011920929.
std::optional<double> rounded(std::optional<double> value) {
  if (value) value = std::round(*value * 1e6) / 1e6;
  return value;
}

// Reads the settings under the names that the file uses.
SamplingChoice read_choice(JsonReader& json, const char* temperature, const char* penalty, const std::string& prefix) {
  const auto number = [&](const std::string& key, double low, double high) {
    return rounded(json.optional_number(prefix + key, low, high));
  };
  SamplingChoice choice{.temperature = number(temperature, 0, 100),
                        .top_p = number("top_p", 0, 1),
                        .min_p = number("min_p", 0, 1),
                        .repetition_penalty = number(penalty, 0.01, 100),
                        .top_k = json.optional_integer(prefix + "top_k", -1, kMostTokens)};
  if (choice.top_k) choice.top_k = std::max<int64_t>(*choice.top_k, 0);
  if (choice.top_p == 0) choice.top_k = 1;
  if (choice.top_p == 0) choice.top_p = 1;
  return choice;
}

}  // namespace

SamplingOptions SamplingChoice::over(SamplingOptions others) const {
  others.temperature = temperature.value_or(others.temperature);
  others.top_p = top_p.value_or(others.top_p);
  others.min_p = min_p.value_or(others.min_p);
  others.repetition_penalty = repetition_penalty.value_or(others.repetition_penalty);
  others.top_k = top_k.value_or(others.top_k);
  return others;
}

SamplingChoice read_generation_config(const std::string& folder) {
  JsonReader json(read_object(place_of(folder)), place_of(folder));
  return read_choice(json, "temperature", "repetition_penalty", "");
}

SamplingChoice pretrained_sampling(const std::string& source) {
  std::error_code ignored;
  if (fs::is_directory(source, ignored)) return read_generation_config(source);
  const GgufFile file(source);
  JsonReader metadata = file.metadata();
  return read_choice(metadata, "temp", "penalty_repeat", "general.sampling.");
}

void write_generation_config(const SamplingChoice& choice, const std::string& folder) {
  if (choice.empty()) return;
  Json json = read_object(place_of(folder));
  json["do_sample"] = true;  // without this transformers ignores the other settings
  const auto put = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  put("temperature", choice.temperature);
  put("top_k", choice.top_k);
  put("top_p", choice.top_p);
  put("min_p", choice.min_p);
  put("repetition_penalty", choice.repetition_penalty);
  write_file(place_of(folder), json.dump(2) + "\n");
}

SamplingChoice default_sampling(const std::string& run, const Tokenizer* tokenizer) {
  const SamplingChoice own = read_generation_config(run);
  const bool taught = tokenizer && tokenizer->special().chat.taught();
  return own.empty() && taught ? kLlamaCpp : own;
}

Json sampling_json(const SamplingOptions& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty}};
}

}  // namespace cortado
