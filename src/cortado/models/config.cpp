#include "cortado/models/config.h"

#include "cortado/base/error.h"
#include "cortado/base/fields.h"
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
                                              {"geglu", FeedForwardKind::kGeglu},
                                              {"experts", FeedForwardKind::kExperts}};
const Words<PositionKind> kPositions = {{"none", PositionKind::kNone},
                                        {"sinusoidal", PositionKind::kSinusoidal},
                                        {"learned", PositionKind::kLearned},
                                        {"rotary", PositionKind::kRotary}};
const Words<HeadKind> kHeads = {
    {"language", HeadKind::kLanguage}, {"classes", HeadKind::kClasses}, {"pairs", HeadKind::kPairs}};
const Words<Pooling> kPoolings = {{"mean", Pooling::kMean}, {"class", Pooling::kClass}};
const Words<Activation> kGelus = {{"gelu_tanh", Activation::kGeluTanh}, {"gelu", Activation::kGelu}};
const Words<RouterScores> kScores = {{"softmax", RouterScores::kSoftmax}, {"sigmoid", RouterScores::kSigmoid}};
const Words<Activation> kOfMlps = {
    {"gelu_tanh", Activation::kGeluTanh}, {"gelu", Activation::kGelu}, {"relu2", Activation::kRelu2}};

void check_mixer(const JsonReader& reader, const Json& mixer, const std::string& key) {
  reader.fail_if(!mixer.is_object() || !mixer.contains("mixer"), "\"", key,
                 "\" must be an object that names a mixer, like {\"mixer\": \"latte\"}, got ", mixer.dump());
}

struct LayerEntry {
  Json mixer;
  LayerChanges changes;
};

// Of every expert's gate.
void limit_fields(JsonFields& json, ExpertChoice& experts) {
  GateLimit gate = experts.limit.value_or(GateLimit());
  std::optional<double> limit = experts.limit ? std::optional(gate.limit) : std::nullopt;
  json.optional_number("limit", limit, 1e-3, 1e6);
  json.number("alpha", gate.alpha, 1e-3, 1e3);
  json.fail_if(!limit && json.has("alpha"), "\"alpha\" needs \"limit\"");
  json.fail_if(limit && !experts.gated, "\"limit\" goes with gated experts");
  gate.limit = limit.value_or(gate.limit);
  experts.limit = limit ? std::optional(gate) : std::nullopt;
}

void expert_fields(JsonFields& json, FeedForwardConfig& config) {
  ExpertChoice& experts = config.experts;
  json.integer("experts", experts.count, 1, 65536);
  json.integer("per_token", experts.per_token, 1, experts.count);
  json.boolean("normalized", experts.normalized);
  json.integer("shared", experts.shared, 0, kWide);
  // The following are written only if they are not the default, so that files and hashes of older models do not change.
  const auto unusual = [&](bool differs) { return json.reading() || differs; };
  if (json.reading() ? experts.shared > 0 : !experts.shared_gate) json.boolean("shared_gate", experts.shared_gate);
  if (unusual(!experts.gated)) json.boolean("gated", experts.gated);
  if (json.reading() && !experts.gated) config.activation = Activation::kGeluTanh;
  if (!experts.gated) json.word("activation", config.activation, kOfMlps);
  if (unusual(experts.scores != RouterScores::kSoftmax)) json.word("scores", experts.scores, kScores);
  if (unusual(experts.choice_bias)) json.boolean("choice_bias", experts.choice_bias);
  if (unusual(experts.groups > 1)) {
    json.integer("groups", experts.groups, 1, experts.count);
    json.integer("groups_per_token", experts.groups_per_token, 1, experts.groups);
    const int64_t each = experts.count / experts.groups;
    json.fail_if(experts.count % experts.groups != 0 || each < 2, "\"experts\" = ", experts.count,
                 " do not make \"groups\" = ", experts.groups, " of equal sizes, two or more");
    json.fail_if(experts.per_token > experts.groups_per_token * each,
                 "\"groups_per_token\" = ", experts.groups_per_token,
                 " groups have fewer than \"per_token\" = ", experts.per_token, " experts");
  }
  if (unusual(experts.scale != 1)) json.number("scale", experts.scale, 1e-6, 1e6);
  if (unusual(experts.router_bias)) json.boolean("router_bias", experts.router_bias);
  if (unusual(experts.scale_input)) json.boolean("scale_input", experts.scale_input);
  if (unusual(experts.limit.has_value())) limit_fields(json, experts);
  if (unusual(experts.latent > 0)) json.integer("latent", experts.latent, 0, kWide);
}

void feed_forward_fields(JsonFields& json, FeedForwardConfig& config, int64_t dim) {
  json.word("type", config.kind, kFeedForwards);
  if (config.kind == FeedForwardKind::kNone) return;
  const bool gated = config.kind != FeedForwardKind::kMlp;
  const bool experts = config.kind == FeedForwardKind::kExperts;
  const bool swiglu = config.kind == FeedForwardKind::kSwiglu || experts;
  if (json.reading()) {
    config.dim = gated ? (8 * dim + 23) / 24 * 8 : 4 * dim;
    config.activation = swiglu ? Activation::kSilu : Activation::kGeluTanh;
  }
  json.integer("dim", config.dim, 1, kWide);
  json.boolean("bias", config.bias);
  if (!swiglu) json.word("activation", config.activation, gated ? kGelus : kOfMlps);
  if (experts) expert_fields(json, config);
}

// A layer's own feed-forward: an object, or false for none.
std::optional<FeedForwardConfig> read_own_feed_forward(JsonReader& entry, int64_t dim) {
  const Json own = entry.any("feed_forward");
  if (own.is_null() || own == true) return std::nullopt;
  FeedForwardConfig config;
  if (own == false) {
    config.kind = FeedForwardKind::kNone;
  } else {
    JsonFields::read(entry.object("feed_forward"), entry.place() + ".feed_forward",
                     [&](JsonFields& inner) { feed_forward_fields(inner, config, dim); });
  }
  return config;
}

LayerChanges read_changes(JsonReader& entry, int64_t dim) {
  const auto optional = [&](const char* key) {
    const bool there = entry.has(key), value = entry.boolean(key, false);
    return there ? std::optional(value) : std::nullopt;
  };
  return {optional("pre_norm"), optional("post_norm"), read_own_feed_forward(entry, dim)};
}

// Expands a pattern [{"repeat": 3, "mixer": {...}}, ...] of layers of `dim` channels, repeated `times` as a whole.
std::vector<LayerEntry> expand_pattern(JsonReader& reader, const Json& pattern, int64_t dim, int64_t times) {
  std::vector<LayerEntry> once;
  for (size_t i = 0; i < pattern.size(); ++i) {
    JsonReader entry(pattern[i], concat(reader.place(), ".layers[", i, "]"));
    const int64_t repeat = entry.integer("repeat", 1, kManyLayers, 1);
    const Json mixer = entry.object("mixer");
    check_mixer(entry, mixer, "mixer");
    const LayerChanges changes = read_changes(entry, dim);
    entry.finish();
    once.insert(once.end(), repeat, {mixer, changes});
    if (once.size() > kManyLayers) break;
  }
  const auto total = static_cast<int64_t>(once.size()) * times;
  reader.fail_if(total < 1 || total > kManyLayers, "\"layers\" must give 1 to ", kManyLayers, " layers, got ", total);
  std::vector<LayerEntry> layers;
  for (int64_t i = 0; i < times; ++i) layers.insert(layers.end(), once.begin(), once.end());
  return layers;
}

std::vector<LayerEntry> read_layers(JsonReader& reader, int64_t dim) {
  const Json layers = reader.any("layers");
  if (layers.is_array()) {
    if (reader.has("mixer")) reader.fail("\"mixer\" goes with a number of layers; a list names a mixer in each entry");
    return expand_pattern(reader, layers, dim, reader.integer("repeat_layers", 1, kManyLayers, 1));
  }
  const int64_t count = reader.integer("layers", 1, kManyLayers);
  const Json mixer = reader.object("mixer");
  check_mixer(reader, mixer, "mixer");
  return std::vector<LayerEntry>(count, {mixer, {}});
}

Json read_initialization(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  Json result = {{"type", reader.choice("type", {"lecun", "normal"}, "lecun")}};
  if (result["type"] == "normal") result["std"] = reader.number("std", 0.0, 100.0, 0.02);
  result["scale_residual"] = reader.boolean("scale_residual", false);
  reader.finish();
  return result;
}

void position_fields(JsonFields& json, ModelConfig& config) {
  json.word("positions", config.positions, kPositions);
  json.number("rope_theta", config.rope_theta, 1.0, 1e12);
  if (json.reading() ? json.has("rope_scaling") : config.rope_scaling.type != RotaryScaling::Type::kNone) {
    Json scaling = config.rope_scaling.to_json();
    json.field("rope_scaling", scaling, [&](JsonReader& reader) {
      const std::string place = reader.place() + ".rope_scaling";
      config.rope_scaling = RotaryScaling::from_json(reader.object("rope_scaling"), place);
      return Json();
    });
  }
  json.field("context", config.context, [&](JsonReader& reader) {
    const bool needed = config.positions == PositionKind::kLearned;
    return reader.integer("context", needed ? 1 : 0, kLong, needed ? std::nullopt : std::optional<int64_t>(0));
  });
}

void head_fields(JsonFields& json, HeadConfig& head) {
  json.word("type", head.kind, kHeads);
  if (head.kind == HeadKind::kLanguage) return;
  json.field("classes", head.classes, [](JsonReader& reader) { return reader.integer("classes", 2, kWide); });
  json.word("pooling", head.pooling, kPoolings);
  json.integer("hidden", head.hidden, 0, kWide);
}

// The default is tokens.
void input_fields(JsonFields& json, int64_t& channels) {
  std::string type = channels > 0 ? "numbers" : "tokens";
  json.choice("type", type, {"tokens", "numbers"});
  if (type == "tokens") return;
  channels = std::max<int64_t>(channels, 1);
  json.integer("channels", channels, 1, kWide);
}

// An object that another layer (train/, tasks/) reads.
Json unread_object(JsonReader& reader, const std::string& key, const Json& absent) {
  Json object = reader.any(key);
  if (object.is_null()) return absent;
  if (!object.is_object()) reader.fail("\"", key, "\" must be an object, got ", object.dump());
  return object;
}

// One entry of the list "layers".
Json layer_to_json(const Json& mixer, const LayerChanges& changes, int64_t dim) {
  Json entry = {{"repeat", 1}, {"mixer", mixer}};
  if (changes.pre_norm) entry["pre_norm"] = *changes.pre_norm;
  if (changes.post_norm) entry["post_norm"] = *changes.post_norm;
  if (!changes.feed_forward) return entry;
  FeedForwardConfig own = *changes.feed_forward;
  entry["feed_forward"] = own.kind == FeedForwardKind::kNone
                              ? Json(false)
                              : JsonFields::written([&](JsonFields& all) { feed_forward_fields(all, own, dim); });
  return entry;
}

// Writes equal neighbours once, with "repeat".
Json layers_to_json(const ModelConfig& config) {
  Json list = Json::array();
  for (size_t i = 0; i < config.layers.size(); ++i) {
    Json entry = layer_to_json(config.layers[i], config.changes_of(static_cast<int64_t>(i)), config.dim);
    if (!list.empty()) entry["repeat"] = list.back()["repeat"];
    if (!list.empty() && list.back() == entry) {
      list.back()["repeat"] = entry["repeat"].get<int64_t>() + 1;
    } else {
      entry["repeat"] = 1;
      list.push_back(std::move(entry));
    }
  }
  return list;
}

void layers_field(JsonFields& json, ModelConfig& config) {
  Json list = layers_to_json(config);
  const bool alike = list.size() == 1 && config.changes.empty();
  if (alike) list = static_cast<int64_t>(config.layers.size());
  json.field("layers", list, [&](JsonReader& reader) {
    for (const LayerEntry& layer : read_layers(reader, config.dim)) {
      if (layer.changes != LayerChanges{}) config.changes[static_cast<int64_t>(config.layers.size())] = layer.changes;
      config.layers.push_back(layer.mixer);
    }
    return Json();
  });
  if (!json.reading() && alike) json.field("mixer", config.layers.front(), [](JsonReader&) { return Json(); });
}

void config_fields(JsonFields& json, ModelConfig& config) {
  const bool reading = json.reading();
  if (reading || !config.name.empty()) json.text("name", config.name);
  if (reading ? json.has("vocabulary") : config.vocabulary > 0) {
    json.integer("vocabulary", config.vocabulary, 1, int64_t{1} << 31);
  }
  json.field("dim", config.dim, [](JsonReader& reader) { return reader.integer("dim", 1, kWide); });
  json.integer("heads", config.heads, 1, 65536);
  json.fail_if(config.dim % config.heads != 0, "\"dim\" = ", config.dim,
               " is not divisible by \"heads\" = ", config.heads);
  layers_field(json, config);
  json.word("norm", config.norm, kNorms);
  json.number("norm_eps", config.norm_eps, 0.0, 1.0);
  if (config.norm == NormKind::kLayer) json.boolean("norm_bias", config.norm_bias);
  // Written only if it is not the default, so that files and hashes of older models do not change.
  if (reading || !config.pre_norm) json.boolean("pre_norm", config.pre_norm);
  json.boolean("post_norm", config.post_norm);
  if (reading || config.normed_residual) json.boolean("normed_residual", config.normed_residual);
  json.object("feed_forward", [&](JsonFields& inner) { feed_forward_fields(inner, config.feed_forward, config.dim); });
  position_fields(json, config);
  json.object("embedding", [&](JsonFields& embedding) {
    embedding.boolean("tied", config.tied);
    embedding.boolean("scaled", config.scaled_embedding);
    // Written only if set, so that files and hashes of older models do not change.
    if (reading || config.embedding_scale) embedding.optional_number("scale", config.embedding_scale, 1e-6, 1e6);
    if (reading || config.embedding_norm) embedding.boolean("norm", config.embedding_norm);
    embedding.fail_if(config.scaled_embedding && config.embedding_scale, "\"scale\" stands in place of \"scaled\"");
  });
  json.boolean("head_bias", config.head_bias);
  // Written only if they differ from a language model's, so that files and hashes of language models do not change.
  if (reading || config.channels > 0) {
    json.object("input", [&](JsonFields& input) { input_fields(input, config.channels); });
  }
  if (reading || config.head.kind != HeadKind::kLanguage) {
    json.object("head", [&](JsonFields& head) { head_fields(head, config.head); });
  }
  json.fail_if(config.channels > 0 && config.head.kind == HeadKind::kLanguage,
               "\"input\" is numbers: that needs a \"head\" of classes or pairs");
  json.number("dropout", config.dropout, 0.0, 0.99);
  json.optional_number("final_softcap", config.final_softcap, 1e-3, 1e6);
  json.boolean("causal", config.causal);
  json.field("initialization", config.initialization, [](JsonReader& reader) {
    return read_initialization(reader.object("initialization"), reader.place() + ".initialization");
  });
  if (reading || !config.task.is_null()) {
    json.field("task", config.task, [](JsonReader& reader) { return unread_object(reader, "task", Json()); });
  }
  json.field("training", config.training,
             [](JsonReader& reader) { return unread_object(reader, "training", Json::object()); });
}

// A layer whose own feed-forward is the model's has no change, so that the config has one form.
void forget_equal_feed_forwards(ModelConfig& config) {
  for (auto& [layer, changes] : config.changes) {
    if (changes.feed_forward == config.feed_forward) changes.feed_forward.reset();
  }
  std::erase_if(config.changes, [](const auto& it) { return it.second == LayerChanges{}; });
}

// Hkv d, the width of one token's keys in a layer.
int64_t key_width(const Json& layer, const ModelConfig& config) {
  const auto heads = layer.value("heads", config.heads), key_heads = layer.value("kv_heads", heads);
  return layer.contains("head_dim") ? key_heads * layer["head_dim"].get<int64_t>() : config.dim * key_heads / heads;
}

// The member or element `key` of `node`. Adds missing members to objects.
Json& descend(Json& node, const std::string& key, const std::string& path) {
  if (node.is_null()) node = Json::object();
  if (node.is_object()) return node[key];
  const bool number = !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == std::string::npos;
  if (node.is_array() && number && std::stoul(key) < node.size()) return node[std::stoul(key)];
  throw InputError(concat("[set] \"", path, "\": there is no \"", key, "\" in ", node.dump()));
}

}  // namespace

ModelConfig ModelConfig::from_json(const Json& json, const std::string& source_name) {
  ModelConfig config;
  Json own = json;
  if (own.is_object()) {
    const Json type = own.value("model_type", Json(kModelType));
    fail_input_if(type != kModelType, "[", source_name, "] \"model_type\" is ", type.dump(), ", not \"", kModelType,
                  "\": another program's model (cortado import reads some)");
    for (const char* key : {"model_type", "architectures", "transformers"}) own.erase(key);
  }
  JsonFields::read(own, source_name, [&](JsonFields& all) { config_fields(all, config); });
  forget_equal_feed_forwards(config);
  return config;
}

LayerChanges ModelConfig::changes_of(int64_t layer) const {
  const auto found = changes.find(layer);
  return found == changes.end() ? LayerChanges{} : found->second;
}

Json ModelConfig::to_json() const {
  ModelConfig config = *this;
  return JsonFields::written([&](JsonFields& all) { config_fields(all, config); });
}

std::string ModelConfig::architecture_hash() const {
  Json json = to_json();
  for (const char* key : {"name", "dropout", "initialization", "task", "training"}) json.erase(key);
  if (positions != PositionKind::kLearned) json.erase("context");
  Checksum checksum;
  checksum.add(json.dump());
  return checksum.hex();
}

void set(Json& config, const std::string& path, Json value) {
  Json* node = &config;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    fail_input_if(end == begin, "[set] \"", path, "\" has an empty key");
    node = &descend(*node, path.substr(begin, end - begin), path);
    begin = end + 1;
  }
  *node = std::move(value);
}

void apply_setting(Json& config, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  fail_input_if(equals == std::string::npos || equals == 0, "[set] expected key=value, got \"", assignment, "\"");
  const std::string text = assignment.substr(equals + 1);
  check_json_depth(text, "set");
  const Json value = Json::parse(text, nullptr, false);
  set(config, assignment.substr(0, equals), value.is_discarded() ? Json(text) : value);
}

int64_t key_value_bytes(const ModelConfig& config, int64_t tokens, at::ScalarType type) {
  int64_t width = 0;
  for (const Json& layer : config.layers) width += key_width(layer, config);
  return 2 * width * tokens * static_cast<int64_t>(c10::elementSize(type));
}

}  // namespace cortado
