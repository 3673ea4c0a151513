#include "cortado/models/pretrained/rope.h"

namespace cortado {
namespace {

// Removes keys whose value is null.
Json without_nulls(const Json& object) {
  Json kept = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return kept;
}

// The object `name` of the config. If it has one object per layer type, these must be equal, and one of them is
// returned.
Json rope_object(JsonReader& config, const std::string& name) {
  const Json object = without_nulls(config.object(name));
  Json chosen;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_object()) continue;
    config.fail_if(!chosen.is_null() && chosen != value, "its types of layers have different \"", name,
                   "\", which is not supported");
    chosen = value;
  }
  if (chosen.is_null()) return object;
  for (const auto& [key, value] : object.items()) {
    config.fail_if(!value.is_object(), "\"", name, "\" has \"", key, "\" although each type of layers has its own");
  }
  return without_nulls(chosen);
}

// The key was called "type" before transformers 4.43; some files have both.
std::string read_type(JsonReader& rope) {
  const std::string earlier = rope.text("type", "default");
  const std::string type = rope.text("rope_type", earlier);
  rope.fail_if(rope.has("type") && type != earlier, "\"rope_type\" is \"", type, "\", \"type\" is \"", earlier, "\"");
  return type;
}

RotaryScaling read_scaling(JsonReader& rope) {
  const std::string type = read_type(rope);
  RotaryScaling scaling;
  // transformers writes it with every type of scaling, and uses it for one.
  const int64_t original = rope.integer("original_max_position_embeddings", 1, int64_t{1} << 40, 0);
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.type = RotaryScaling::Type::kLinear;
  } else if (type == "llama3") {
    scaling.type = RotaryScaling::Type::kLlama3;
    scaling.low = rope.number("low_freq_factor", 0.0, 1e9);
    scaling.high = rope.number("high_freq_factor", 0.0, 1e9);
    rope.fail_if(original == 0, "missing key \"original_max_position_embeddings\"");
    scaling.original_context = original;
  } else {
    rope.fail("rotary positions of type \"", type, "\" are not supported; supported: default, linear, llama3");
  }
  scaling.factor = rope.number("factor", 1e-9, 1e9);
  return scaling;
}

// A number that may be in the config or in the rope object: transformers 5 reads the latter, version 4 the former. Both
// must agree.
double number_of_both(JsonReader& config, JsonReader& rope, const char* key, double low, double high, double usual) {
  const double outer = config.number(key, low, high, usual), inner = rope.number(key, low, high, outer);
  rope.fail_if(config.has(key) && inner != outer, "\"", key, "\" is ", inner, " here and ", outer, " in the config");
  return inner;
}

}  // namespace

PretrainedRope read_rope(JsonReader& config, double usual_fraction) {
  const Json parameters = rope_object(config, "rope_parameters"), scaling = rope_object(config, "rope_scaling");
  config.fail_if(!parameters.empty() && !scaling.empty() && parameters != scaling,
                 "\"rope_parameters\" and \"rope_scaling\" say different things");
  const bool early = parameters.empty() && !scaling.empty();
  JsonReader rope(early ? scaling : parameters, config.place() + (early ? ".rope_scaling" : ".rope_parameters"));
  PretrainedRope read;
  read.fraction = number_of_both(config, rope, "partial_rotary_factor", 0.0, 1.0, usual_fraction);
  read.theta = number_of_both(config, rope, "rope_theta", 1.0, 1e12, 1e4);
  read.scaling = read_scaling(rope);
  // How frequencies are shared among time, height and width. All three are a text's position.
  for (const char* key : {"mrope_section", "mrope_interleaved"}) rope.any(key);
  rope.finish();
  return read;
}

}  // namespace cortado
