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
struct NumberKey {
  const char* name;
  double low, high, usual;
  const char* outer = nullptr;  // its name in the config, if that is another one
};
double number_of_both(JsonReader& config, JsonReader& rope, const NumberKey& key) {
  const std::string outer_name = key.outer ? key.outer : key.name;
  const double outer = config.number(outer_name, key.low, key.high, key.usual);
  const double inner = rope.number(key.name, key.low, key.high, outer);
  rope.fail_if(config.has(outer_name) && inner != outer, "\"", key.name, "\" is ", inner, " here, and \"", outer_name,
               "\" is ", outer, " in the config");
  return inner;
}

constexpr double kMostTheta = 1e12;

// Reads the object of one type of layers.
Rotary read_typed_rope(JsonReader& config, const Json& object, const std::string& place, const char* outer,
                       double usual) {
  JsonReader rope(without_nulls(object), config.place() + place);
  Rotary read(number_of_both(config, rope, {"rope_theta", 1.0, kMostTheta, usual, outer}));
  read.scaling = read_scaling(rope);
  rope.finish();
  return read;
}

}  // namespace

PretrainedRope read_rope(JsonReader& config, double usual_fraction, double usual_theta) {
  const Json parameters = rope_object(config, "rope_parameters"), scaling = rope_object(config, "rope_scaling");
  config.fail_if(!parameters.empty() && !scaling.empty() && parameters != scaling,
                 "\"rope_parameters\" and \"rope_scaling\" say different things");
  const bool early = parameters.empty() && !scaling.empty();
  JsonReader rope(early ? scaling : parameters, config.place() + (early ? ".rope_scaling" : ".rope_parameters"));
  PretrainedRope read;
  read.fraction = number_of_both(config, rope, {"partial_rotary_factor", 0.0, 1.0, usual_fraction});
  read.theta = number_of_both(config, rope, {"rope_theta", 1.0, kMostTheta, usual_theta});
  read.scaling = read_scaling(rope);
  // How frequencies are shared among time, height and width. All three are a text's position.
  for (const char* key : {"mrope_section", "mrope_interleaved"}) rope.any(key);
  rope.finish();
  return read;
}

RopesByType read_ropes_by_type(JsonReader& config, const UsualThetas& usual) {
  const Json parameters = without_nulls(config.object("rope_parameters"));
  const Json scaling = without_nulls(config.object("rope_scaling"));
  for (const auto& [key, value] : parameters.items()) {
    config.fail_if((key != "full_attention" && key != "sliding_attention") || !value.is_object(),
                   "\"rope_parameters\" has \"", key,
                   "\", expected an object for each of full_attention and sliding_attention");
  }
  const Json said = parameters.value("full_attention", Json::object());
  config.fail_if(!said.empty() && !scaling.empty() && said != scaling,
                 "\"rope_parameters\" and \"rope_scaling\" say different things");
  const bool early = said.empty() && !scaling.empty();
  RopesByType read{
      read_typed_rope(config, early ? scaling : said, early ? ".rope_scaling" : ".rope_parameters.full_attention",
                      "rope_theta", usual.full),
      read_typed_rope(config, parameters.value("sliding_attention", Json::object()),
                      ".rope_parameters.sliding_attention", "rope_local_base_freq", usual.sliding)};
  config.fail_if(read.sliding.scaling.type != RotaryScaling::Type::kNone,
                 "\"rope_parameters\" stretches the positions of sliding_attention, which is not supported");
  return read;
}

}  // namespace cortado
