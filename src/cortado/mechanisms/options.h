// Settings of mechanisms that commands take as options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

struct MechanismOption {
  std::string name;  // "cache": --cache of a command, "cache" in JSON
  std::string help;  // "pairs in the sparse cache"
  // The allowed words. Empty: a number between `low` and `high`.
  std::vector<std::string> words = {};
  std::map<std::string, std::string> earlier = {};  // words of earlier versions and their present names
  double low = 0, high = 0;
  bool whole = true;         // an integer
  Json fallback = nullptr;   // the value if it is not given; null: the mechanism's own default
  std::string setting = {};  // the layer's setting that it sets, if that has another name
  std::string needs = {};    // the option without which it has no effect
  bool later = false;        // of a conversion: may change in a second conversion, which keeps the learned weights

  const std::string& key() const { return setting.empty() ? name : setting; }
};

// Options and the name of what they belong to: a memory, or a way of conversion.
struct OptionOwner {
  std::string name;
  const std::vector<MechanismOption>& options;
};

// Reads and checks the owners' options that are present in the object. Leaves other keys to the caller's finish().
Json read_options(JsonReader& reader, const std::vector<OptionOwner>& owners);

// Throws InputError "WHAT has no NAME" for the first key of `values` that is no option.
void refuse_others(const Json& values, const std::vector<MechanismOption>& options, const std::string& what);

}  // namespace cortado
