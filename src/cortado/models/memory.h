// Running a converted model with another memory than it was trained with: same weights, other mixers.
#pragma once

#include <string>
#include <vector>

#include "cortado/mechanisms/options.h"
#include "cortado/models/config.h"

namespace cortado {

// What the layers whose mechanism has a MemoryKind remember the past by. Others, and layers for which nothing was
// learned that the kind needs, stay as they are.
struct Memory {
  std::string kind;               // a MemoryKind's name
  Json options = Json::object();  // of that kind, by name: {"cache": 256}

  // {"kind": "lola", "cache": 256, ...}; InputError where a key or value is wrong.
  static Memory from_json(const Json& json, const std::string& place);
};

// What Memory's kind can be.
std::vector<std::string> memory_kinds();
// Every kind with its options.
std::vector<OptionOwner> memory_options();

// The config with that memory. InputError: an option that the kind does not have, no layer that it could change.
ModelConfig with_memory(ModelConfig config, const Memory& memory);

}  // namespace cortado
