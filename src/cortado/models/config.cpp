#include "cortado/models/config.h"

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/formats/checksum.h"

namespace cortado {

namespace {

constexpr int64_t kManyLayers = 10000;
constexpr int64_t kWide = 1 << 20;
constexpr int64_t kLong = int64_t{1} << 40;

const Words<NormKind> kNorms = {{"layer", NormKind::kLayer}, {"rms", NormKind::kRms}};
const Words<FeedForwardKind> kFeedForwards = {{"none", FeedForwardKind::kNone},
                                              {"mlp", FeedForwardKind::kMlp},
                                              {"swiglu", FeedForwardKind::kSwiglu},
                                              {"geglu", FeedForwardKind::kGeglu}};
const Words<PositionKind> kPositions = {{"none", PositionKind::kNone},
                                        {"sinusoidal", PositionKind::kSinusoidal},
                                        {"learned", PositionKind::kLearned},
                                        {"rotary", PositionKind::kRotary}};
const Words<HeadKind> kHeads = {
    {"language", HeadKind::kLanguage}, {"classes", HeadKind::kClasses}, {"pairs", HeadKind::kPairs}};
const Words<Pooling> kPoolings = {{"mean", Pooling::kMean}, {"class", Pooling::kClass}};
const Words<Activation> kGelus = {{"gelu_tanh", Activation::kGeluTanh}, {"gelu", Activation::kGelu}};

void check_mixer(const JsonReader& reader, const Json& mixer, const std::string& key) {
  if (!mixer.is_object() || !mixer.contains("mixer")) {
    reader.fail(
        concat("\"", key, "\" must be an object that names a mixer, like {\"mixer\": \"latte\"}, got ", mixer.dump()));
  }
}

// A pattern: [{"repeat": 3, "mixer": {...}}, ...], as a whole repeated `times`.
std::vector<Json> expand_pattern(JsonReader& reader, const Json& pattern, int64_t times) {
  std::vector<Json> once;
  for (size_t i = 0; i < pattern.size(); ++i) {
    JsonReader entry(pattern[i], concat(reader.place(), ".layers[", i, "]"));
    const int64_t repeat = entry.integer("repeat", 1, kManyLayers, 1);
    const Json mixer = entry.object("mixer");
    check_mixer(entry, mixer, "mixer");
    entry.finish();
    once.insert(once.end(), repeat, mixer);
    if (once.size() > kManyLayers) break;
  }
  const auto total = static_cast<int64_t>(once.size()) * times;
  if (total < 1 || total > kManyLayers) {
    reader.fail(concat("\"layers\" must give 1 to ", kManyLayers, " layers, got ", total));
  }
  std::vector<Json> layers;
  for (int64_t i = 0; i < times; ++i) layers.insert(layers.end(), once.begin(), once.end());
  return layers;
}

std::vector<Json> read_layers(JsonReader& reader) {
  const Json layers = reader.any("layers");
  if (layers.is_array()) {
    if (reader.has("mixer")) reader.fail("\"mixer\" goes with a number of layers; a list names a mixer in each entry");
    return expand_pattern(reader, layers, reader.integer("repeat_layers", 1, kManyLayers, 1));
  }
  const int64_t count = reader.integer("layers", 1, kManyLayers);
  const Json mixer = reader.object("mixer");
  check_mixer(reader, mixer, "mixer");
  return std::vector<Json>(count, mixer);
}

void read_feed_forward(const Json& json, const std::string& place, ModelConfig& config) {
  JsonReader reader(json, place);
  config.feed_forward = choose(reader, "type", kFeedForwards, "swiglu");
  if (config.feed_forward == FeedForwardKind::kNone) return reader.finish();
  const bool gated = config.feed_forward != FeedForwardKind::kMlp;
  const int64_t natural = gated ? (8 * config.dim + 23) / 24 * 8 : 4 * config.dim;
  config.feed_forward_dim = reader.integer("dim", 1, kWide, natural);
  config.feed_forward_bias = reader.boolean("bias", false);
  if (config.feed_forward == FeedForwardKind::kSwiglu) {
    config.feed_forward_activation = Activation::kSilu;
  } else {
    config.feed_forward_activation = choose(reader, "activation", kGelus, "gelu_tanh");
  }
  reader.finish();
}

Json read_initialization(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  Json result = {{"type", reader.choice("type", {"lecun", "normal"}, "lecun")}};
  if (result["type"] == "normal") result["std"] = reader.number("std", 0.0, 100.0, 0.02);
  result["scale_residual"] = reader.boolean("scale_residual", false);
  reader.finish();
  return result;
}

void read_positions(JsonReader& reader, ModelConfig& config) {
  config.positions = choose(reader, "positions", kPositions, "none");
  config.rope_theta = reader.number("rope_theta", 1.0, 1e12, 10000.0);
  const bool scaled = reader.has("rope_scaling");
  const Json scaling = reader.object("rope_scaling");
  if (scaled) config.rope_scaling = RotaryScaling::from_json(scaling, reader.place() + ".rope_scaling");
  if (config.positions == PositionKind::kLearned) {
    config.context = reader.integer("context", 1, kLong);
  } else {
    config.context = reader.integer("context", 0, kLong, 0);
  }
}

// Absent: tokens.
int64_t read_channels(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  const bool numbers = reader.choice("type", {"tokens", "numbers"}, "tokens") == "numbers";
  const int64_t channels = numbers ? reader.integer("channels", 1, kWide, 1) : 0;
  reader.finish();
  return channels;
}

HeadConfig read_head(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  HeadConfig head;
  head.kind = choose(reader, "type", kHeads, "language");
  if (head.kind != HeadKind::kLanguage) {
    head.classes = reader.integer("classes", 2, kWide);
    head.pooling = choose(reader, "pooling", kPoolings, "mean");
    head.hidden = reader.integer("hidden", 0, kWide, 0);
  }
  reader.finish();
  return head;
}

Json training_object(JsonReader& reader) {
  const Json training = reader.any("training");
  if (training.is_null()) return Json::object();
  if (!training.is_object()) reader.fail(concat("\"training\" must be an object, got ", training.dump()));
  return training;
}

// Equal neighbours are written once, with "repeat".
Json layers_to_json(const std::vector<Json>& layers) {
  Json list = Json::array();
  for (const Json& mixer : layers) {
    if (!list.empty() && list.back()["mixer"] == mixer) {
      list.back()["repeat"] = list.back()["repeat"].get<int64_t>() + 1;
    } else {
      list.push_back({{"repeat", 1}, {"mixer", mixer}});
    }
  }
  return list;
}

Json feed_forward_to_json(const ModelConfig& config) {
  Json json = {{"type", name_of(kFeedForwards, config.feed_forward)}};
  if (config.feed_forward == FeedForwardKind::kNone) return json;
  json["dim"] = config.feed_forward_dim;
  json["bias"] = config.feed_forward_bias;
  if (config.feed_forward != FeedForwardKind::kSwiglu) {
    json["activation"] = name_of(kGelus, config.feed_forward_activation);
  }
  return json;
}

}  // namespace

ModelConfig ModelConfig::from_json(const Json& json, const std::string& source_name) {
  JsonReader reader(json, source_name);
  ModelConfig config;
  config.name = reader.text("name", "");
  config.vocabulary = reader.optional_integer("vocabulary", 1, int64_t{1} << 31).value_or(0);
  config.dim = reader.integer("dim", 1, kWide);
  config.heads = reader.integer("heads", 1, 65536, 1);
  if (config.dim % config.heads != 0) {
    reader.fail(concat("\"dim\" = ", config.dim, " is not divisible by \"heads\" = ", config.heads));
  }
  config.layers = read_layers(reader);
  config.norm = choose(reader, "norm", kNorms, "rms");
  config.norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-6);
  if (config.norm == NormKind::kLayer) config.norm_bias = reader.boolean("norm_bias", true);
  config.post_norm = reader.boolean("post_norm", false);
  read_feed_forward(reader.object("feed_forward"), source_name + ".feed_forward", config);
  read_positions(reader, config);
  JsonReader embedding(reader.object("embedding"), source_name + ".embedding");
  config.tied = embedding.boolean("tied", true);
  config.scaled_embedding = embedding.boolean("scaled", false);
  embedding.finish();
  config.head_bias = reader.boolean("head_bias", false);
  config.channels = read_channels(reader.object("input"), source_name + ".input");
  config.head = read_head(reader.object("head"), source_name + ".head");
  if (config.channels > 0 && config.head.kind == HeadKind::kLanguage) {
    reader.fail("\"input\" is numbers: that needs a \"head\" of classes or pairs");
  }
  config.dropout = reader.number("dropout", 0.0, 0.99, 0.0);
  config.final_softcap = reader.optional_number("final_softcap", 1e-3, 1e6);
  config.causal = reader.boolean("causal", true);
  config.initialization = read_initialization(reader.object("initialization"), source_name + ".initialization");
  config.training = training_object(reader);
  reader.finish();
  return config;
}

Json ModelConfig::to_json() const {
  Json json = Json::object();
  if (!name.empty()) json["name"] = name;
  if (vocabulary > 0) json["vocabulary"] = vocabulary;
  json["dim"] = dim;
  json["heads"] = heads;
  const Json list = layers_to_json(layers);
  if (list.size() == 1) {
    json["layers"] = static_cast<int64_t>(layers.size());
    json["mixer"] = layers.front();
  } else {
    json["layers"] = list;
  }
  json["norm"] = name_of(kNorms, norm);
  json["norm_eps"] = norm_eps;
  if (norm == NormKind::kLayer) json["norm_bias"] = norm_bias;
  json["post_norm"] = post_norm;
  json["feed_forward"] = feed_forward_to_json(*this);
  json["positions"] = name_of(kPositions, positions);
  json["rope_theta"] = rope_theta;
  if (rope_scaling.type != RotaryScaling::Type::kNone) json["rope_scaling"] = rope_scaling.to_json();
  json["context"] = context;
  json["embedding"] = {{"tied", tied}, {"scaled", scaled_embedding}};
  json["head_bias"] = head_bias;
  // Language models' files and hashes are as they were before there was anything else.
  if (channels > 0) json["input"] = {{"type", "numbers"}, {"channels", channels}};
  if (head.kind != HeadKind::kLanguage) {
    json["head"] = {{"type", name_of(kHeads, head.kind)},
                    {"classes", head.classes},
                    {"pooling", name_of(kPoolings, head.pooling)},
                    {"hidden", head.hidden}};
  }
  json["dropout"] = dropout;
  json["final_softcap"] = final_softcap ? Json(*final_softcap) : Json(nullptr);
  json["causal"] = causal;
  json["initialization"] = initialization;
  json["training"] = training;
  return json;
}

std::string ModelConfig::architecture_hash() const {
  Json json = to_json();
  for (const char* key : {"name", "dropout", "initialization", "training"}) json.erase(key);
  if (positions != PositionKind::kLearned) json.erase("context");
  Checksum checksum;
  checksum.add(json.dump());
  return checksum.hex();
}

namespace {

// The member or element `key` of `node`; objects grow it where it is missing.
Json& descend(Json& node, const std::string& key, const std::string& assignment) {
  if (node.is_null()) node = Json::object();
  if (node.is_object()) return node[key];
  const bool number = !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == std::string::npos;
  if (node.is_array() && number && std::stoul(key) < node.size()) return node[std::stoul(key)];
  throw InputError(concat("[set] \"", assignment, "\": there is no \"", key, "\" in ", node.dump()));
}

}  // namespace

void apply_setting(Json& config, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  fail_input_if(equals == std::string::npos || equals == 0, "[set] expected key=value, got \"", assignment, "\"");
  Json* node = &config;
  for (size_t begin = 0; begin <= equals;) {
    const size_t end = std::min(assignment.find('.', begin), equals);
    fail_input_if(end == begin, "[set] \"", assignment, "\" has an empty key");
    node = &descend(*node, assignment.substr(begin, end - begin), assignment);
    begin = end + 1;
  }
  const std::string text = assignment.substr(equals + 1);
  check_json_depth(text, "set");
  const Json value = Json::parse(text, nullptr, false);
  *node = value.is_discarded() ? Json(text) : value;
}

}  // namespace cortado
