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
  Json object = without_nulls(config.object(name));
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

constexpr int64_t kLongest = int64_t{1} << 40;
constexpr double kMostFactor = 1e9;

// The lengths that stretched positions refer to. Phi-3 has the original one in the config itself.
struct Contexts {
  std::optional<int64_t> original, whole;

  Contexts(JsonReader& config, JsonReader& rope)
      : whole(config.optional_integer("max_position_embeddings", 1, kLongest)) {
    const char* key = "original_max_position_embeddings";
    const auto outer = config.optional_integer(key, 1, kLongest);
    original = rope.optional_integer(key, 1, kLongest);
    rope.fail_if(original && outer && *original != *outer, "\"", key, "\" is ", original.value_or(0), " here, and ",
                 outer.value_or(0), " in the config");
    if (!original) original = outer;
  }
  // Without an original length, transformers takes the whole one.
  int64_t begin(const JsonReader& rope, int64_t least) const {
    const int64_t length = original.value_or(whole.value_or(0));
    rope.fail_if(length < least, "missing key \"original_max_position_embeddings\", ", least, " or more");
    return length;
  }
  int64_t end(const JsonReader& rope) const {
    rope.fail_if(!whole, "missing key \"max_position_embeddings\" of the config");
    return *whole;
  }
  // How many times the original length the whole one is; `rope` may say it.
  double factor(JsonReader& rope, int64_t original_length) const {
    if (const auto said = rope.optional_number("factor", 1.0 / kMostFactor, kMostFactor)) return *said;
    return static_cast<double>(end(rope)) / static_cast<double>(original_length);
  }
};

std::optional<double> read_attention_factor(JsonReader& rope) {
  return rope.optional_number("attention_factor", 1e-9, kMostFactor);
}

void read_yarn(JsonReader& rope, const Contexts& contexts, RotaryScaling& scaling) {
  scaling.type = RotaryScaling::Type::kYarn;
  scaling.original_context = contexts.begin(rope, 1);
  scaling.factor = contexts.factor(rope, scaling.original_context);
  scaling.beta_fast = rope.optional_number("beta_fast", 1e-9, kMostFactor).value_or(scaling.beta_fast);
  scaling.beta_slow = rope.optional_number("beta_slow", 1e-9, kMostFactor).value_or(scaling.beta_slow);
  scaling.truncate = rope.boolean("truncate", true);
  const double some = rope.number("mscale", 0.0, 1e6, 0.0), all = rope.number("mscale_all_dim", 0.0, 1e6, 0.0);
  const double usual = some != 0 && all != 0
                           ? yarn_attention_factor(scaling.factor, some) / yarn_attention_factor(scaling.factor, all)
                           : yarn_attention_factor(scaling.factor);
  scaling.attention_factor = read_attention_factor(rope).value_or(usual);
}

void read_longrope(JsonReader& rope, const Contexts& contexts, RotaryScaling& scaling) {
  scaling.type = RotaryScaling::Type::kLongrope;
  scaling.original_context = contexts.begin(rope, 2);
  scaling.context = contexts.end(rope);
  const double factor = contexts.factor(rope, scaling.original_context);
  scaling.attention_factor =
      read_attention_factor(rope).value_or(longrope_attention_factor(factor, scaling.original_context));
  scaling.short_factors = read_factors(rope, "short_factor");
  scaling.long_factors = read_factors(rope, "long_factor");
}

RotaryScaling read_scaling(JsonReader& config, JsonReader& rope) {
  std::string type = read_type(rope);
  // Phi-3's first files.
  if (type == "su" || (type == "yarn" && rope.has("long_factor"))) type = "longrope";
  RotaryScaling scaling;
  // transformers writes it with every type of scaling.
  const Contexts contexts(config, rope);
  rope.fail_if(
      type == "dynamic",
      "rotary positions of type \"dynamic\" are not supported: every longer text has other frequencies, for "
      "which all keys would be computed anew. Up to max_position_embeddings tokens, the type \"default\" gives "
      "the same numbers");
  if (type == "linear") {
    scaling.type = RotaryScaling::Type::kLinear;
    scaling.factor = rope.number("factor", 1.0 / kMostFactor, kMostFactor);
  } else if (type == "llama3") {
    scaling.type = RotaryScaling::Type::kLlama3;
    scaling.low = rope.number("low_freq_factor", 0.0, kMostFactor);
    scaling.high = rope.number("high_freq_factor", 0.0, kMostFactor);
    scaling.original_context = contexts.begin(rope, 1);
    scaling.factor = rope.number("factor", 1.0 / kMostFactor, kMostFactor);
  } else if (type == "yarn") {
    read_yarn(rope, contexts, scaling);
  } else if (type == "longrope") {
    read_longrope(rope, contexts, scaling);
  } else {
    rope.fail_if(type != "default", "rotary positions of type \"", type,
                 "\" are not supported; supported: default, linear, llama3, yarn, longrope");
  }
  scaling.check(rope);
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
  read.scaling = read_scaling(config, rope);
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
  read.scaling = read_scaling(config, rope);
  // How frequencies are shared among time, height and width. All three are a text's position.
  for (const char* key : {"mrope_section", "mrope_interleaved"}) rope.any(key);
  rope.finish();
  return read;
}

Rotary read_whole_rope(JsonReader& config, double usual_theta) {
  const PretrainedRope rope = read_rope(config, 1.0, usual_theta);
  config.fail_if(rope.fraction != 1.0,
                 "\"partial_rotary_factor\": rotary positions on a part of each head are not supported");
  return {rope.theta, rope.scaling};
}

void write_rope(const Rotary& rope, Json& config) {
  config["positions"] = "rotary";
  config["rope_theta"] = rope.theta;
  if (rope.scaling.type != RotaryScaling::Type::kNone) config["rope_scaling"] = rope.scaling.to_json();
}

Json rope_scaling_json(const RotaryScaling& scaling) {
  if (scaling.type == RotaryScaling::Type::kNone) return nullptr;
  if (scaling.type == RotaryScaling::Type::kLinear) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  Json json = {{"original_max_position_embeddings", scaling.original_context}};
  if (scaling.type == RotaryScaling::Type::kLongrope) {
    json.update({{"rope_type", "longrope"},
                 {"short_factor", scaling.short_factors},
                 {"long_factor", scaling.long_factors},
                 {"attention_factor", scaling.attention_factor}});
    return json;
  }
  json["factor"] = scaling.factor;
  if (scaling.type == RotaryScaling::Type::kYarn) {
    json.update({{"rope_type", "yarn"},
                 {"beta_fast", scaling.beta_fast},
                 {"beta_slow", scaling.beta_slow},
                 {"truncate", scaling.truncate},
                 {"attention_factor", scaling.attention_factor}});
    return json;
  }
  json.update({{"rope_type", "llama3"}, {"low_freq_factor", scaling.low}, {"high_freq_factor", scaling.high}});
  return json;
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
