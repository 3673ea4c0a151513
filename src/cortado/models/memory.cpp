#include "cortado/models/memory.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/mechanisms/lola/rule.h"

namespace cortado {
namespace {

constexpr const char* kProjections[] = {"heads",        "kv_heads",        "head_dim", "rotary",      "rope_theta",
                                        "rope_scaling", "rotary_fraction", "bias",     "output_bias", "softcap",
                                        "scale"};
constexpr const char* kFeatures[] = {"feature_map", "features"};

void copy(const Json& from, Json& to, const char* key) {
  if (from.contains(key)) to[key] = from[key];
}

template <typename T>
void set(Json& to, const char* key, const std::optional<T>& value) {
  if (value) to[key] = *value;
}

bool has_features(const std::string& name) { return name == "lolcats" || name == "lola"; }

// Options that a kind has no use for are refused, not ignored.
void check_options(const Memory& memory) {
  const std::string& kind = memory.kind;
  const auto& kinds = memory_kinds();
  fail_input_if(std::find(kinds.begin(), kinds.end(), kind) == kinds.end(), "[memory] expected softmax, window, ",
                "lolcats or lola, got \"", kind, "\"");
  const auto only = [&](bool given, const char* option, bool allowed) {
    fail_input_if(given && !allowed, "[memory] ", kind, " has no ", option);
  };
  const bool lola = kind == "lola", lolcats = kind == "lolcats";
  only(memory.window.has_value(), "window", kind != "softmax");
  only(memory.chunk.has_value(), "chunk", lola);
  only(memory.cache.has_value(), "cache", lola);
  only(memory.score.has_value(), "score", lola);
  only(memory.mixture.has_value(), "mixture", lola || lolcats);
  only(memory.layout.has_value(), "layout", lolcats);
}

// The settings of one layer under that memory; the same where it does not apply.
Json changed(const Json& layer, const Memory& memory) {
  const std::string name = layer["mixer"].get<std::string>(), &kind = memory.kind;
  const bool softmax = name == "softmax" || name == "sliding_window";
  if (!softmax && !has_features(name)) return layer;
  if (softmax && has_features(kind)) return layer;
  Json result = {{"mixer", kind == "window" ? "sliding_window" : kind}};
  for (const char* key : kProjections) copy(layer, result, key);
  if (!has_features(kind)) {
    if (kind == "window") result["window"] = memory.window.value_or(layer.value("window", int64_t{64}));
    return result;
  }
  for (const char* key : kFeatures) copy(layer, result, key);
  if (name == kind) result = layer;
  // As the layer was trained; the large cache of lola drowns in the mixture "lolcats".
  std::string mixture = layer.value("mixture", name == "lola" ? "gated" : "lolcats");
  if (kind == "lola" && mixture == "lolcats" && name != kind) mixture = "gated";
  result["mixture"] = mixture;
  set(result, "mixture", memory.mixture);
  if (kind == "lolcats") {
    set(result, "window", memory.window);
    set(result, "layout", memory.layout);
    return result;
  }
  set(result, "chunk", memory.chunk);
  set(result, "cache", memory.cache);
  set(result, "score", memory.score);
  set(result, "token_window", memory.window);
  return result;
}

}  // namespace

const std::vector<std::string>& memory_kinds() {
  static const std::vector<std::string> kinds = {"softmax", "window", "lolcats", "lola"};
  return kinds;
}

Memory Memory::from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  Memory memory{.kind = reader.choice("kind", memory_kinds())};
  const auto size = [&](const char* key) { return reader.optional_integer(key, 0, int64_t{1} << 24); };
  const auto choice = [&](const char* key, const std::vector<std::string>& allowed) -> std::optional<std::string> {
    if (!reader.has(key)) return std::nullopt;
    return reader.choice(key, allowed);
  };
  memory.window = size("window");
  memory.chunk = size("chunk");
  memory.cache = size("cache");
  memory.mixture = choice("mixture", lolcats_mixtures());
  memory.score = choice("score", lola_scores());
  memory.layout = choice("layout", lolcats_layouts());
  reader.finish();
  return memory;
}

ModelConfig with_memory(ModelConfig config, const Memory& memory) {
  check_options(memory);
  bool any = false;
  for (Json& layer : config.layers) {
    const std::string name = layer["mixer"].get<std::string>();
    any = any || has_features(name) || (!has_features(memory.kind) && (name == "softmax" || name == "sliding_window"));
    layer = changed(layer, memory);
  }
  fail_input_if(!any, "[memory] no layer of this model can run as ", memory.kind,
                has_features(memory.kind) ? ": `cortado linearize` makes a model that can" : "");
  return config;
}

}  // namespace cortado
