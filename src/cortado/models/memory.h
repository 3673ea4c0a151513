// Runs a converted model with another memory than it was trained with: equal weights, other mixers.
#pragma once

#include <string>
#include <vector>

#include "cortado/mechanisms/options.h"
#include "cortado/models/config.h"

namespace cortado {

// How layers whose mechanism has a MemoryKind remember the past. Other layers stay as they are, and so do layers that
// did not learn what the kind needs.
struct Memory {
  std::string kind;               // a MemoryKind's name
  Json options = Json::object();  // options of that kind, by name: {"cache": 256}

  // Reads {"kind": "lola", "cache": 256, ...}. Throws InputError for a wrong key or value.
  static Memory from_json(const Json& json, const std::string& place);
};

// The possible values of Memory::kind.
std::vector<std::string> memory_kinds();
// Every kind with its options.
std::vector<OptionOwner> memory_options();

// The config with this memory. Throws InputError for options that the kind does not have, and if it changes no layer.
ModelConfig with_memory(ModelConfig config, const Memory& memory);

}  // namespace cortado
