#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// transformers 5: {"rope_parameters": {"rope_theta", "rope_type", ...}}, possibly one of these for each type of layer.
Json rope_parameters(JsonReader& config) {
  const Json parameters = config.object("rope_parameters");
  Json chosen = parameters;
  for (const auto& [key, value] : parameters.items()) {
    if (!value.is_object()) continue;
    if (!chosen.contains("rope_type") || chosen == value) {
      chosen = value;
    } else {
      config.fail("its types of layers have different \"rope_parameters\", which is not supported");
    }
  }
  return chosen;
}

RotaryScaling read_scaling(const Json& json, const std::string& place) {
  if (json.empty()) return {};
  JsonReader reader(json, place);
  const char* key = reader.has("rope_type") ? "rope_type" : "type";  // its name before transformers 4.43
  const std::string type = reader.text(key, "default");
  if (type == "default") return {};
  RotaryScaling scaling;
  if (type == "linear") {
    scaling.type = RotaryScaling::Type::kLinear;
  } else if (type == "llama3") {
    scaling.type = RotaryScaling::Type::kLlama3;
    scaling.low = reader.number("low_freq_factor", 0.0, 1e9);
    scaling.high = reader.number("high_freq_factor", 0.0, 1e9);
    scaling.original_context = reader.integer("original_max_position_embeddings", 1, int64_t{1} << 40);
  } else {
    reader.fail("rotary positions of type \"", type, "\" are not supported; supported: default, linear, llama3");
  }
  scaling.factor = reader.number("factor", 1e-9, 1e9);
  return scaling;
}

}  // namespace

PretrainedRope read_rope(JsonReader& config, double usual_fraction) {
  const Json parameters = rope_parameters(config), scaling = config.object("rope_scaling");
  JsonReader rope(parameters, config.place() + ".rope_parameters");
  PretrainedRope read;
  const double fraction = config.number("partial_rotary_factor", 0.0, 1.0, usual_fraction);
  read.fraction = rope.number("partial_rotary_factor", 0.0, 1.0, fraction);
  read.theta = rope.number("rope_theta", 1.0, 1e12, config.number("rope_theta", 1.0, 1e12, 1e4));
  read.scaling = scaling.empty() ? read_scaling(parameters, config.place() + ".rope_parameters")
                                 : read_scaling(scaling, config.place() + ".rope_scaling");
  return read;
}

}  // namespace cortado
