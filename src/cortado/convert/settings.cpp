#include "cortado/convert/settings.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/softmax/mixer.h"

namespace cortado {
namespace {

bool is_softmax(const Json& layer) { return layer.value("mixer", "") == kSoftmax.name; }

void complete(Json& layer, const ModelConfig& source) {
  const auto& substitute = find_mechanism(layer["mixer"]).substitute;
  if (!substitute || !substitute->complete) return;
  substitute->complete(layer, layer.value("heads", source.heads), source.positions == PositionKind::kRotary);
}

void check_kept(const ModelConfig& source, const std::vector<int64_t>& keep) {
  const auto layers = static_cast<int64_t>(source.layers.size());
  for (const int64_t layer : keep) {
    fail_input_if(layer < 0 || layer >= layers, "[--keep] there is no layer ", layer, ": the model has 0 to ",
                  layers - 1);
    const Json& mixer = source.layers[static_cast<size_t>(layer)];
    fail_input_if(!is_softmax(mixer), "[--keep] layer ", layer, " is no softmax layer but ", mixer["mixer"]);
  }
}

// Throws InputError if the layer has what its students lack.
void check_replaceable(const Json& layer, size_t number) {
  for (const auto& [key, meaning] :
       {std::pair("taps", "short convolutions"), std::pair("sinks", "scores without values"),
        std::pair("temperature_period", "queries that grow with their position")}) {
    const Json value = layer.value(key, Json());
    fail_input_if(!value.is_null() && value != 0 && value != false, "[linearize] layer ", number, " has ", meaning,
                  " (\"", key, "\": ", value, "), which nothing that takes softmax's place has: keep it (--keep)");
  }
}

}  // namespace

void ConversionSettings::fields(JsonFields& json) {
  json.field("mixer", mixer, [](JsonReader& reader) { return reader.object("mixer"); });
  json.values("keep", keep, "layers");
}

bool ConversionSettings::with_cache() const {
  return mixer.value("cache", Json(0)) != 0 && mixer.value("score", "learned") == "learned";
}

bool ConversionSettings::with_latents() const {
  const Mechanism& mechanism = find_mechanism(mixer.value("mixer", ""));
  return mechanism.latents && mixer.value("latents", Json()) != 0;
}

ModelConfig converted_config(const ModelConfig& source, const ConversionSettings& settings) {
  fail_input_if(!source.causal, "[linearize] the model is not causal: attention transfer is for decoders");
  check_kept(source, settings.keep);
  ModelConfig config = source;
  int64_t softmax = 0, converted = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    Json& layer = config.layers[i];
    if (!is_softmax(layer)) continue;
    ++softmax;
    if (std::find(settings.keep.begin(), settings.keep.end(), static_cast<int64_t>(i)) != settings.keep.end()) continue;
    check_replaceable(layer, i);
    layer.update(settings.mixer);
    complete(layer, source);
    ++converted;
  }
  fail_input_if(softmax == 0, "[linearize] the model has no softmax layers: there is nothing to convert");
  fail_input_if(converted == 0, "[--keep] every softmax layer is kept: there is nothing to convert");
  config.training = Json::object();
  return config;
}

}  // namespace cortado
