// Small models with random weights, for tests.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <memory>
#include <string>
#include <vector>

#include "cortado/models/language_model.h"
#include "cortado/testing/examples.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado::testing {

// Makes a model of two layers over bytes. Equal arguments give equal weights.
inline std::shared_ptr<LanguageModel> byte_model(const std::string& mixer, const std::string& positions = "rotary",
                                                 int64_t context = 64, int64_t dim = 24, int64_t vocabulary = 256) {
  const Json json = {{"vocabulary", vocabulary},
                     {"dim", dim},
                     {"heads", 4},
                     {"layers", 2},
                     {"mixer", parse_json(mixer, "test")},
                     {"norm", "rms"},
                     {"positions", positions},
                     {"context", context},
                     {"initialization", {{"type", "normal"}, {"std", 0.3}}},
                     {"feed_forward", {{"type", "mlp"}, {"dim", 32}}}};
  at::manual_seed(5);
  return std::make_shared<LanguageModel>(ModelConfig::from_json(json, "test"));
}

// A model whose width suits every mechanism's default sizes: no row ends in ATen's scalar loops. They round differently
// from its vector loops, and where they begin depends on the number of rows. For tests that compare rows of a batch.
inline std::shared_ptr<LanguageModel> wide_model(const std::string& mixer, int64_t vocabulary = 256) {
  return byte_model(mixer, "rotary", 64, 96, vocabulary);
}

// Returns every mechanism that can decode, with each of its example settings.
inline std::vector<std::string> causal_mixers() {
  std::vector<std::string> found;
  for (const auto* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    for (const auto& example : examples_of(*mechanism).examples) {
      Json mixer = {{"mixer", mechanism->name}};
      mixer.update(parse_json(example, mechanism->name));
      found.push_back(mixer.dump());
    }
  }
  return found;
}

}  // namespace cortado::testing
