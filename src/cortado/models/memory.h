// Running a converted model with another memory than it was trained with: same weights, other mixers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cortado/models/config.h"

namespace cortado {

// What the layers with softmax, lolcats or lola remember the past by. Layers of other mechanisms, and softmax layers
// where the kind is lolcats or lola (nothing was learned for them), stay as they are.
struct Memory {
  std::string kind;  // "softmax", "window", "lolcats", "lola"
  // Pairs in the window ("window", "lolcats"); in lola of single tokens (none: they are read by chunks).
  std::optional<int64_t> window = {};
  std::optional<int64_t> chunk = {}, cache = {};  // lola: C and λ
  std::optional<std::string> mixture = {};        // lolcats, lola
  std::optional<std::string> score = {};          // lola
  std::optional<std::string> layout = {};         // lolcats

  // {"kind": "lola", "cache": 256, ...}; InputError where a key or value is wrong.
  static Memory from_json(const Json& json, const std::string& place);
};

// What Memory's kind can be.
const std::vector<std::string>& memory_kinds();

// The config with that memory. InputError: an option that the kind does not have, no layer that it could change.
ModelConfig with_memory(ModelConfig config, const Memory& memory);

}  // namespace cortado
