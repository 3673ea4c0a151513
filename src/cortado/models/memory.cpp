#include "cortado/models/memory.h"

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/mechanisms/registry.h"

namespace cortado {
namespace {

// The settings that softmax attention and all mechanisms on its weights share.
constexpr const char* kProjections[] = {"heads",
                                        "kv_heads",
                                        "head_dim",
                                        "rotary",
                                        "rope_theta",
                                        "rope_scaling",
                                        "rotary_fraction",
                                        "bias",
                                        "output_bias",
                                        "softcap",
                                        "scale",
                                        "qk_norm",
                                        "qk_norm_type",
                                        "norm_eps",
                                        "output_gate",
                                        "taps",
                                        "taps_start",
                                        "sinks",
                                        "temperature_period",
                                        "temperature_scale"};

// All mechanisms that can be a memory.
std::vector<const Mechanism*> memories() {
  std::vector<const Mechanism*> found;
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->memory) found.push_back(mechanism);
  }
  return found;
}

const Mechanism& mechanism_of(const Memory& memory) {
  for (const Mechanism* mechanism : memories()) {
    if (mechanism->memory->name == memory.kind) return *mechanism;
  }
  throw InputError(concat("[memory] expected ", alternatives(memory_kinds()), ", got \"", memory.kind, "\""));
}

// Whether a layer of `from` has the weights that `to` needs.
bool runs_on(const Mechanism& to, const Mechanism& from) {
  return from.memory && from.memory->weights == to.memory->weights &&
         (to.memory->learned.empty() || !from.memory->learned.empty());
}

// The settings of one layer as a layer of `to`.
Json changed(const Json& layer, const Mechanism& from, const Mechanism& to, const Json& options) {
  const MemoryKind& kind = *to.memory;
  Json result = {{"mixer", to.name}};
  for (const char* key : kProjections) {
    if (layer.contains(key)) result[key] = layer[key];
  }
  if (&from == &to) result = layer;
  for (const auto& [key, otherwise] : kind.learned.items()) {
    const Json value = layer.contains(key) ? layer[key] : from.memory->learned[key];
    if (!value.is_null()) result[key] = value;
  }
  if (&from != &to && kind.adapt) kind.adapt(result);
  for (const MechanismOption& option : kind.options) {
    if (options.contains(option.name)) {
      result[option.key()] = options[option.name];
    } else if (!option.fallback.is_null()) {
      result[option.key()] = layer.value(option.key(), option.fallback);
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> memory_kinds() {
  std::vector<std::string> names;
  for (const Mechanism* mechanism : memories()) names.push_back(mechanism->memory->name);
  return names;
}

std::vector<OptionOwner> memory_options() {
  std::vector<OptionOwner> owners;
  for (const Mechanism* mechanism : memories()) owners.push_back({mechanism->memory->name, mechanism->memory->options});
  return owners;
}

Memory Memory::from_json(const Json& json, const std::string& place) {
  JsonReader reader(json, place);
  Memory memory{.kind = reader.choice("kind", memory_kinds())};
  memory.options = read_options(reader, memory_options());
  reader.finish();
  return memory;
}

ModelConfig with_memory(ModelConfig config, const Memory& memory) {
  const Mechanism& to = mechanism_of(memory);
  refuse_others(memory.options, to.memory->options, "[memory] " + memory.kind);
  bool any = false;
  for (Json& layer : config.layers) {
    const Mechanism& from = find_mechanism(layer["mixer"]);
    if (!runs_on(to, from)) continue;
    any = true;
    layer = changed(layer, from, to, memory.options);
  }
  fail_input_if(!any, "[memory] no layer of this model can run as ", memory.kind,
                to.memory->learned.empty() ? "" : ": `cortado linearize` makes a model that can");
  return config;
}

}  // namespace cortado
