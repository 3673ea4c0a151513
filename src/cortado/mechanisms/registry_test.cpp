// Checks the registry's statements against the mechanisms.
#include "cortado/mechanisms/registry.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "cortado/primitives/kernels.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/examples.h"

namespace cortado {
namespace {

std::set<std::string>& operators_called() {
  static std::set<std::string> names;
  return names;
}

std::unique_ptr<at::ObserverContext> note_operator(const at::RecordFunction& function) {
  operators_called().insert(function.name());
  return nullptr;
}

// The operators that `run` calls, on this thread.
template <typename Run>
std::set<std::string> operators_of(const Run& run) {
  operators_called().clear();
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&note_operator));
  run();
  at::removeCallback(handle);
  return operators_called();
}

// Runs a whole sequence, dense and packed, and if there is a state, a prefill and a decoding step.
void exercise(const Mechanism& mechanism, const std::string& example, bool causal) {
  Json settings = parse_json(example, "example");
  settings["mixer"] = mechanism.name;
  MixerContext context;
  context.dim = 24;
  context.heads = 4;
  context.causal = causal;
  const auto mixer = make_mixer(settings, context, "example");
  const Tensor x = at::randn({1, 70, context.dim});
  Batch packed;
  packed.cu_seqlens = at::tensor({0, 20, 70}, at::kLong);
  mixer->forward(x, {}, nullptr);
  mixer->forward(x, packed, nullptr);
  if (!causal) return;
  SequenceState state = mixer->zero_state(1, x.options());
  mixer->forward(x, {}, &state);
  mixer->forward(x.narrow(1, 0, 1), {}, &state);
}

std::set<std::string> primitives_called(const Mechanism& mechanism) {
  const auto operators = operators_of([&] {
    for (const std::string& example : testing::examples_of(mechanism).examples) {
      if (mechanism.causal) exercise(mechanism, example, true);
      if (mechanism.bidirectional) exercise(mechanism, example, false);
    }
    for (const std::string& example : testing::examples_of(mechanism).causal_examples) {
      exercise(mechanism, example, true);
    }
  });
  std::set<std::string> names;
  for (const Primitive& primitive : kPrimitives) {
    if (operators.count(std::string(primitive.operation))) names.emplace(primitive.name);
  }
  return names;
}

TEST(Registry, MechanismsNameThePrimitivesThatTheyCall) {
  for (const Mechanism* mechanism : mechanisms()) {
    const std::set<std::string> named(mechanism->primitives.begin(), mechanism->primitives.end());
    EXPECT_EQ(named.size(), mechanism->primitives.size()) << mechanism->name << " names one twice";
    EXPECT_EQ(primitives_called(*mechanism), named) << "called by, and named by, " << mechanism->name;
  }
}

TEST(Registry, PrimitivesAreOperators) {
  for (const Primitive& primitive : kPrimitives) {
    EXPECT_TRUE(c10::Dispatcher::singleton().findSchema({std::string(primitive.operation), ""})) << primitive.operation;
  }
  for (const Mechanism* mechanism : mechanisms()) {
    for (const std::string& name : mechanism->primitives) {
      EXPECT_NE(find_primitive(name), nullptr) << mechanism->name << ": " << name;
    }
  }
}

// Fails if a kernel exists but is not named, or is named but does not exist.
TEST(Registry, KernelsAreNamedWhereTheyAre) {
  const char* source = std::getenv("CORTADO_SOURCE");
  ASSERT_NE(source, nullptr) << "run by ctest, or set CORTADO_SOURCE to the repository";
  for (const Primitive& primitive : kPrimitives) {
    const auto folder = std::filesystem::path(source) / "src/cortado/primitives" /
                        (primitive.owner.empty() ? primitive.name : primitive.owner);
    EXPECT_EQ(std::filesystem::exists(folder / "kernel.cpp"), !primitive.kernel.empty())
        << primitive.name << ": primitives/kernels.h and " << folder << " disagree";
  }
}

TEST(Registry, KernelsOfAMechanismAreThoseOfItsPrimitives) {
  const Primitive primitives[] = {{"gated_scan", "", "Highway"}, {"slot_scan", "", "Highway"}, {"short_conv", "", ""}};
  Mechanism mechanism = find_mechanism("gla");
  mechanism.primitives = {"slot_scan", "gated_scan", "short_conv"};
  EXPECT_EQ(kernels_of(mechanism, primitives), "Highway: gated_scan, slot_scan");
  mechanism.primitives = {"short_conv", "gated_scan"};
  EXPECT_EQ(kernels_of(mechanism, primitives), "Highway: gated_scan");
  mechanism.primitives = {"short_conv"};
  EXPECT_EQ(kernels_of(mechanism, primitives), "ATen");
}

TEST(Registry, RotaryChannelsAreTurnedInPairs) {
  const auto with = [](double fraction) {
    const Json settings = {{"mixer", "sliding_window"}, {"rotary", true}, {"rotary_fraction", fraction}};
    return testing::error_of([&] { make_mixer(settings, {.dim = 24, .heads = 4}, "example"); });
  };
  EXPECT_EQ(with(0.34), testing::kNoError);  // two of six channels
  EXPECT_NE(with(0.5), testing::kNoError);
  EXPECT_NE(with(0.1), testing::kNoError);
}

// settings_of() must find every key that the examples use.
TEST(Registry, SettingsOfNamesEverySettingOfTheExamples) {
  for (const Mechanism* mechanism : mechanisms()) {
    std::set<std::string> known;
    MixerContext context{.dim = 24, .heads = 4, .causal = mechanism->causal};
    context.rotary = true;  // some settings are read only with rotary positions
    for (const auto& question : settings_of(*mechanism, context)) {
      EXPECT_TRUE(known.insert(question.key).second) << mechanism->name << ": " << question.key << " twice";
      EXPECT_FALSE(question.expected.empty()) << mechanism->name << ": " << question.key;
    }
    const auto examples = testing::examples_of(*mechanism);
    for (const auto& list : {examples.examples, examples.causal_examples}) {
      for (const std::string& example : list) {
        const Json settings = parse_json(example, mechanism->name);
        for (const auto& [key, value] : settings.items()) {
          EXPECT_TRUE(known.contains(key)) << mechanism->name << ": " << key;
        }
      }
    }
  }
}

TEST(Registry, SettingsSayWhatTheyAreWhereAbsent) {
  CORTADO_NEEDS("macchiato");
  std::map<std::string, JsonReader::Question> asked;
  for (const auto& question : settings_of(find_mechanism("macchiato"), {.dim = 24, .heads = 4})) {
    asked[question.key] = question;
  }
  EXPECT_EQ(asked.at("window").fallback, 129);
  EXPECT_EQ(asked.at("latents").fallback, 24);
  EXPECT_EQ(asked.at("source").words, (std::vector<std::string>{"x", "conv", "rg_lru"}));
}

}  // namespace
}  // namespace cortado
