// A configuration keeps its meaning. Each folder's starts.json records: the settings and the options of commands with
// their limits and defaults, the initial weights of a layer, the output of a layer with known weights, and the stated
// costs.
//
//   CORTADO_RECORD=1 CORTADO_SOURCE=. build/release/bin/mechanisms_tests --gtest_filter='All/Starts*'
//
// records the files anew. Any difference changes everyone's configurations: the commit message must say so.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cortado/base/files.h"
#include "cortado/nn/weights.h"
#include "cortado/primitives/operator_case.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/examples.h"

namespace cortado {
namespace {

// Wide and deep enough for settings that depend on the layer or on rotary positions.
MixerContext context_of(bool causal) {
  return {.dim = 24, .heads = 4, .layer = 1, .layers = 3, .causal = causal, .rotary = true};
}

// Rounded so that machines agree: at::randn differs in its last bits.
Json rounded(double x) { return std::strtod(std::to_string(x).c_str(), nullptr); }

Json numbers_of(const Tensor& x) {
  const Tensor y = x.detach().to(at::kDouble).flatten();
  const Tensor place = (at::arange(y.numel(), y.options()) * 0.7).cos();
  return {rounded(y.mean().item<double>()), rounded(y.square().mean().sqrt().item<double>()),
          rounded((y * place).mean().item<double>())};
}

Json settings_recorded(const Mechanism& mechanism) {
  Json all = Json::array();
  for (const auto& [key, expected, fallback, words] : settings_of(mechanism, context_of(mechanism.causal))) {
    all.push_back({key, words.empty() ? Json(expected) : Json(words), fallback});
  }
  return all;
}

// The options of `cortado linearize --method` and of --memory.
Json options_recorded(const Mechanism& mechanism) {
  Json all = Json::array();
  const auto record = [&](const char* owner, const std::vector<MechanismOption>& options) {
    for (const MechanismOption& option : options) {
      const Json allowed = option.words.empty() ? Json{option.low, option.high, option.whole} : Json(option.words);
      all.push_back({owner, option.name, option.key(), allowed, option.fallback, option.needs, option.later});
    }
  };
  if (mechanism.substitute) record("substitute", mechanism.substitute->options);
  if (mechanism.memory) record("memory", mechanism.memory->options);
  return all;
}

// The stated costs: operations and pairs after 1,000 tokens, and how parts compose.
Json costs_recorded(const Mixer& mixer) {
  const PairCount pairs = mixer.pairs(1000).value_or(PairCount{});
  const Joining joining = mixer.joining();
  return {{"flops", mixer.flops_per_token(1000)},
          {"pairs", {pairs.softmax, pairs.state}},
          {"joining", {joining.least, joining.cost}}};
}

// One example's initial weights, and its output after each weight moved a little (some start at zero).
Json start_recorded(const Mechanism& mechanism, const std::string& example, bool causal) {
  const at::NoGradGuard no_grad;
  Json settings = parse_json(example, mechanism.name), weights = Json::object();
  settings["mixer"] = mechanism.name;
  at::manual_seed(3);
  const auto mixer = make_mixer(settings, context_of(causal), "example");
  mixer->to(at::kDouble);
  for (auto& weight : named_weights(*mixer)) {
    Json numbers = numbers_of(weight.value());
    numbers.insert(numbers.begin(), Json(weight.value().sizes().vec()));
    weights[weight.key()] = numbers;
    if (weight.value().is_floating_point() && weight.value().requires_grad()) {
      const Tensor move = (at::arange(weight.value().numel(), at::kDouble) * 1.3).sin() * 0.1;
      weight.value().add_(move.view(weight.value().sizes()));
    }
  }
  at::manual_seed(4);
  const Tensor x = at::randn({2, 70, 24}, at::kDouble);
  return {{"example", parse_json(example, "example")},
          {"causal", causal},
          {"weights", weights},
          {"answer", numbers_of(mixer->forward(x, {}, nullptr))},
          {"loud", numbers_of(mixer->forward(100 * x, {}, nullptr))},  // reaches clamps and bounds
          {"costs", costs_recorded(*mixer)}};
}

Json starts_recorded(const Mechanism& mechanism) {
  Json starts = Json::array();
  const testing::Examples& examples = testing::examples_of(mechanism);
  for (const bool causal : {true, false}) {
    if (!(causal ? mechanism.causal : mechanism.bidirectional)) continue;
    for (const std::string& example : examples.examples) starts.push_back(start_recorded(mechanism, example, causal));
  }
  for (const std::string& example : examples.causal_examples) {
    starts.push_back(start_recorded(mechanism, example, true));
  }
  return starts;
}

constexpr OperatorSizes kMeasured = {.tokens = 70, .heads = 3, .size = 8};

// The inputs that the operator benchmark draws, and the work that the mechanism states; empty for non-operators.
Json operations_recorded(const Mechanism& mechanism) {
  if (!mechanism.operation) return Json::array();
  const OperatorCase which = mechanism.operation();
  at::manual_seed(5);
  Json inputs = Json::array();
  for (const Tensor& x : which.inputs(kMeasured)) inputs.push_back({x.sizes().vec(), numbers_of(x)});
  const Work work = which.work(kMeasured);
  return Json::array({Json{{"inputs", inputs}, {"work", {work.flops, work.exps}}}});
}

// Equal except for the last digits of fractions.
void expect_same(const Json& now, const Json& then, const std::string& place) {
  if (then.is_number_float() && now.is_number()) {
    EXPECT_NEAR(now.get<double>(), then.get<double>(), 2e-5 * (1 + std::abs(then.get<double>()))) << place;
  } else if (then.is_structured() && now.type() == then.type() && now.size() == then.size()) {
    auto it = now.begin();
    for (const auto& [key, value] : then.items()) {
      if (now.is_object()) {
        EXPECT_EQ(it.key(), key) << place;
      }
      expect_same(*it++, value, concat(place, "/", key));
    }
  } else {
    EXPECT_EQ(now.dump(), then.dump()) << place;
  }
}

// One line per setting or example.
std::string text_of(const Json& file) {
  std::string text = "{";
  for (const auto& [name, lists] : file.items()) {
    text += concat(text.size() > 1 ? "," : "", "\n ", Json(name).dump(), ": {");
    bool first = true;
    for (const auto& [key, list] : lists.items()) {
      text += concat(first ? "" : ",", "\n  ", Json(key).dump(), ": [");
      for (size_t i = 0; i < list.size(); ++i) text += concat(i ? "," : "", "\n   ", list[i].dump());
      text += "]";
      first = false;
    }
    text += "}";
  }
  return text + "\n}\n";
}

class Starts : public ::testing::TestWithParam<const Mechanism*> {};

TEST_P(Starts, AreThoseOfTheRecord) {
  const Mechanism& mechanism = *GetParam();
  const auto path = testing::examples_of(mechanism).folder / "starts.json";
  Json file = std::filesystem::exists(path) ? read_json_file(path) : Json::object();
  if (std::getenv("CORTADO_RECORD")) {
    file[mechanism.name] = {{"settings", settings_recorded(mechanism)},
                            {"options", options_recorded(mechanism)},
                            {"starts", starts_recorded(mechanism)},
                            {"operation", operations_recorded(mechanism)}};
    write_file(path, text_of(file));
  }
  ASSERT_TRUE(file.contains(mechanism.name)) << path << ": nothing is recorded of it";
  const Json& then = file[mechanism.name];
  EXPECT_EQ(settings_recorded(mechanism).dump(), then["settings"].dump());
  EXPECT_EQ(options_recorded(mechanism).dump(), then["options"].dump());
  expect_same(starts_recorded(mechanism), then["starts"], mechanism.name);
  expect_same(operations_recorded(mechanism), then["operation"], mechanism.name);
}

INSTANTIATE_TEST_SUITE_P(All, Starts, ::testing::ValuesIn(mechanisms()),
                         [](const auto& info) { return info.param->name; });

TEST(Operations, WhatIsMeasuredIsTheDefinition) {
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->operation) continue;
    const OperatorCase which = mechanism->operation();
    at::manual_seed(5);
    const Tensors inputs = which.inputs({.tokens = 2 * kCaseWindow + 10, .heads = 3, .size = 8});
    const Tensors got = which.forward(inputs), right = which.reference(inputs);
    ASSERT_GE(got.size(), right.size()) << which.name;
    for (size_t i = 0; i < right.size(); ++i) EXPECT_CLOSE(got[i], right[i], 1e-4) << which.name << " " << i;
  }
}

}  // namespace
}  // namespace cortado
