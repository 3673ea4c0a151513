// What a JSON schema means, in the words that the grammar library holds to. No torch.
#pragma once

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

struct HeldSchema {
  // A part of it that the library cannot hold to is a constant text of its own, in whose place a rule comes.
  struct Rule {
    std::string place;  // that text
    std::string name, rules;
  };
  Json schema;
  std::vector<Rule> rules = {};
  bool distinct =
      false;  // lists that must not repeat an item, or objects that must not a key, are in it: see NoRepeats
};

// Everything that fits the result fits the schema. `closed`: objects and lists hold nothing that it does not name, unless
// it says so itself; without, that is so of objects with "properties" alone. InputError: it cannot be held to.
HeldSchema held_schema(const Json& schema, bool closed);

// What a "$ref" of `root` means: "#" or "#/a/b"; null: there is nothing.
const Json* find_reference(const Json& root, const std::string& reference);

}  // namespace cortado
