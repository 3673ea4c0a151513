// Small settings of every mechanism from its folder's examples.json, for a width of 24 and 4 heads.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"

namespace cortado::testing {

// The settings in one mechanism's lists of examples.json.
struct Examples {
  std::filesystem::path folder;
  std::vector<std::string> examples;         // together they use every option; the conformance suite runs each
  std::vector<std::string> causal_examples;  // examples without a bidirectional form
  // Settings under which the weights over the values form a distribution: in every form of the mechanism, or in the
  // bidirectional form only. The suite checks that values of one give outputs of one. It relies on value maps named
  // "v", gates named "r" and token shifts named "mix_v".
  std::vector<std::string> normalized, normalized_bidirectional;
};

// Adds the examples of one examples.json to `all`, by mechanism. Throws InputError for an unknown list.
inline void read_examples(const std::string& path, std::map<std::string, Examples>& all) {
  const Json file = read_json_file(path);
  for (const auto& [name, lists] : file.items()) {
    Examples& found = all[name];
    found.folder = std::filesystem::path(path).parent_path();
    const std::map<std::string, std::vector<std::string>*> known = {
        {"examples", &found.examples},
        {"causal_examples", &found.causal_examples},
        {"normalized", &found.normalized},
        {"normalized_bidirectional", &found.normalized_bidirectional}};
    for (const auto& [key, list] : lists.items()) {
      if (key == "why") continue;  // a comment
      const auto place = known.find(key);
      fail_input_if(place == known.end(), "[", path, "] ", name, ": unknown list \"", key, "\"");
      for (const Json& settings : list) place->second->push_back(settings.dump());
    }
  }
}

// Returns the examples of a mechanism. Throws InputError if it has none, since it would go untested.
inline const Examples& examples_of(const Mechanism& mechanism) {
  static const std::map<std::string, Examples> all = [] {
    const char* source = std::getenv("CORTADO_SOURCE");
    const auto mechanisms = std::filesystem::path(source ? source : ".") / "src/cortado/mechanisms";
    fail_input_if(!std::filesystem::exists(mechanisms), "[", mechanisms.string(),
                  "] is not there: run the tests by ctest or in the repository's folder, or set CORTADO_SOURCE to it");
    std::map<std::string, Examples> found;
    for (const auto& folder : std::filesystem::directory_iterator(mechanisms)) {
      const auto path = folder.path() / "examples.json";
      if (std::filesystem::exists(path)) read_examples(path, found);
    }
    return found;
  }();
  const auto found = all.find(mechanism.name);
  fail_input_if(found == all.end() || found->second.examples.empty(), "[examples.json] none of ", mechanism.name);
  return found->second;
}

inline bool is_registered(const std::string& name) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (mechanism->name == name) return true;
  }
  return false;
}

}  // namespace cortado::testing

// Skips a test that uses this mechanism although it is about something else, if the mechanism has been deleted
// (scripts/delete_mechanism.py).
#define CORTADO_NEEDS(name) \
  if (!::cortado::testing::is_registered(name)) GTEST_SKIP() << name << " is not there"
