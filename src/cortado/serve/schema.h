// Translates a JSON schema to what the grammar library enforces. Without torch.
#pragma once

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// A schema in the form that the grammar library enforces.
struct EnforcedSchema {
  // A part that the library can't enforce: a unique constant text in the schema, to be replaced by our own rule.
  struct Rule {
    std::string place;  // the constant text
    std::string name, rules;
  };
  Json schema;
  std::vector<Rule> rules = {};
  bool distinct = false;  // whether it has lists without repeated items, or keys, for NoRepeats to check
};

// Returns a schema whose values all fit the given one. `closed`: objects and lists contain nothing but what the schema
// names, unless it allows more itself; otherwise this only holds for objects with "properties". Throws InputError if
// the schema can't be enforced.
EnforcedSchema enforced_schema(const Json& schema, bool closed);

// Returns what a "$ref" of `root` ("#" or "#/a/b") refers to; null if there is nothing.
const Json* find_reference(const Json& root, const std::string& reference);

}  // namespace cortado
