// Test parameters: every mechanism with the settings of each of its examples, in each of its forms.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "cortado/testing/examples.h"

namespace cortado::testing {

// A mechanism with settings, in its causal or its bidirectional form.
struct Subject {
  const Mechanism* mechanism;
  std::string settings;
  bool causal;
};

// Returns all subjects in the causal or the bidirectional form; all_subjects() returns both.
inline std::vector<Subject> subjects(bool causal) {
  std::vector<Subject> all;
  for (const Mechanism* mechanism : mechanisms()) {
    if (causal ? !mechanism->causal : !mechanism->bidirectional) continue;
    for (const auto& settings : examples_of(*mechanism).examples) all.push_back({mechanism, settings, causal});
    if (!causal) continue;
    for (const auto& settings : examples_of(*mechanism).causal_examples) all.push_back({mechanism, settings, true});
  }
  return all;
}

inline std::vector<Subject> all_subjects() {
  std::vector<Subject> all = subjects(true);
  for (auto& subject : subjects(false)) all.push_back(subject);
  return all;
}

// Returns the settings under which a mechanism's weights form a distribution.
inline std::vector<Subject> normalized_subjects() {
  std::vector<Subject> all;
  for (const Mechanism* mechanism : mechanisms()) {
    for (const auto& settings : examples_of(*mechanism).normalized) {
      if (mechanism->causal) all.push_back({mechanism, settings, true});
      if (mechanism->bidirectional) all.push_back({mechanism, settings, false});
    }
    for (const auto& settings : examples_of(*mechanism).normalized_bidirectional) {
      all.push_back({mechanism, settings, false});
    }
  }
  return all;
}

inline void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.mechanism->name << " " << subject.settings << (subject.causal ? " causal" : " bidirectional");
}

// "latte_0_causal": a readable name in ctest's list.
inline std::string subject_name(const ::testing::TestParamInfo<Subject>& info) {
  const Examples& known = examples_of(*info.param.mechanism);
  std::vector<std::string> examples = known.examples;
  for (const auto& more : {known.causal_examples, known.normalized, known.normalized_bidirectional}) {
    examples.insert(examples.end(), more.begin(), more.end());
  }
  const auto which = std::find(examples.begin(), examples.end(), info.param.settings) - examples.begin();
  return info.param.mechanism->name + "_" + std::to_string(which) + (info.param.causal ? "" : "_bidirectional");
}

}  // namespace cortado::testing
