// Settings of mechanisms that a command line may say.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

struct MechanismOption {
  std::string name;  // "cache": --cache of a command, "cache" in JSON
  std::string help;  // "pairs in the sparse cache"
  // A word, one of these; without any a number between the limits.
  std::vector<std::string> words = {};
  std::map<std::string, std::string> earlier = {};  // words of earlier versions, and what they are now
  double low = 0, high = 0;
  bool whole = true;         // no fractions
  Json fallback = nullptr;   // where it is not said; null: what the mechanism takes without the setting
  std::string setting = {};  // the layer's setting, if it has another name
  std::string needs = {};    // the option without which it says nothing
  bool later = false;        // of a conversion: also of layers that have learned already, which keep their weights

  const std::string& key() const { return setting.empty() ? name : setting; }
};

// Options and whose they are: a memory, a way of conversion.
struct OptionOwner {
  std::string name;
  const std::vector<MechanismOption>& options;
};

// The options of any of them that the object has, checked; other keys are left for its finish().
Json read_options(JsonReader& reader, const std::vector<OptionOwner>& owners);

// InputError "WHAT has no NAME" for the first of `values` that is no option.
void refuse_others(const Json& values, const std::vector<MechanismOption>& options, const std::string& what);

}  // namespace cortado
