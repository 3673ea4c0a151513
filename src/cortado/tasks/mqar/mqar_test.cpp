// Compares the generator's statistics with those of an independent implementation of the public generator.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/statistics.h"

namespace cortado {
namespace {

std::unique_ptr<TaskExamples> mqar(const std::string& settings) {
  return mqar_task().open(parse_json(settings, "test"), "task");
}

TEST(Mqar, AnExampleIsPairsAndQueriesWhoseAnswerIsNotShown) {
  const auto task = mqar(R"({"length": 128, "pairs": 16})");
  for (int64_t i = 0; i < 200; ++i) {
    const Example it = task->example(Split::kTrain, i);
    std::map<int64_t, int64_t> value_of;
    for (size_t j = 0; j < 32; j += 2) {
      EXPECT_GE(it.tokens[j], 1);
      EXPECT_LT(it.tokens[j], 4096);
      EXPECT_GE(it.tokens[j + 1], 4096);
      EXPECT_LT(it.tokens[j + 1], 8192);
      value_of[it.tokens[j]] = it.tokens[j + 1];
    }
    EXPECT_EQ(value_of.size(), 16u);
    std::set<int64_t> asked;
    for (size_t t = 0; t < 128; ++t) {
      if (it.targets[t] < 0) {
        EXPECT_EQ(it.targets[t], kIgnored);
        EXPECT_TRUE(t < 32 || it.tokens[t] == 0);  // the answer does not follow its query
        continue;
      }
      EXPECT_EQ(t % 2, 0u);
      EXPECT_EQ(it.targets[t], value_of.at(it.tokens[t]));
      asked.insert(it.tokens[t]);
    }
    EXPECT_EQ(asked.size(), 16u);
  }
}

TEST(Mqar, DrawsAsThePublicGenerator) {
  for (const char* sizes :
       {R"({"length": 64, "pairs": 4})", R"({"length": 128, "pairs": 8})", R"({"length": 256, "pairs": 16})",
        R"({"length": 512, "pairs": 64})", R"({"length": 1024, "pairs": 256})"}) {
    testing::expect_published(*mqar(sizes));
  }
  EXPECT_TRUE(mqar(R"({"length": 128, "pairs": 4})")->published().empty());
}

TEST(Mqar, ExamplesAreAFunctionOfSeedSplitAndIndex) {
  const auto task = mqar("{}"), same = mqar("{}"), other = mqar(R"({"seed": 5})");
  EXPECT_EQ(task->example(Split::kTrain, 77).tokens, same->example(Split::kTrain, 77).tokens);
  EXPECT_NE(task->example(Split::kTrain, 77).tokens, task->example(Split::kTrain, 78).tokens);
  EXPECT_NE(task->example(Split::kTrain, 77).tokens, task->example(Split::kTest, 77).tokens);
  EXPECT_NE(task->example(Split::kTrain, 77).tokens, other->example(Split::kTrain, 77).tokens);
}

TEST(Mqar, TheBasedProtocolMixesLengthsAndFillsWithNoise) {
  const auto task = mqar(R"({"protocol": "based"})");
  EXPECT_EQ(task->segments(Split::kTrain), (std::vector<int64_t>{100000, 20000, 20000, 20000, 20000}));
  EXPECT_EQ(task->size(Split::kTest), 7000);
  EXPECT_EQ(task->shape().length, 1024);
  const Example last = task->example(Split::kTrain, 179999);
  EXPECT_EQ(last.tokens.size(), 256u);
  EXPECT_EQ(task->places(last).size(), 64u);
  EXPECT_EQ(task->example(Split::kTrain, 100000).tokens.size(), 128u);
  double noise = 0;
  for (size_t t = 128; t < 256; ++t) noise += last.targets[t] < 0 ? double(last.tokens[t]) / 64 : 0;
  EXPECT_NEAR(noise, 4096, 1500);
}

// One example has two of two answers right, the other one of four.
TEST(Mqar, ScoresTheMeanOfTheExamplesAndOfEachNumberOfPairs) {
  const auto task =
      mqar(R"({"vocabulary": 32, "train": [{"length": 16, "pairs": 2}], "test": [{"length": 16, "pairs": 4}]})");
  const auto scores = task->scores(Split::kTest);
  const auto answer = [&](Split split, int64_t right) {
    const Example it = task->example(split, 0);
    std::vector<float> logits(task->places(it).size() * 32, 0);
    size_t row = 0;
    for (const int64_t place : task->places(it)) {
      const int64_t target = it.targets[size_t(place)];
      logits[32 * row + size_t(int64_t(row) < right ? target : (target + 1) % 32)] = 1;
      ++row;
    }
    scores->add(0, it, logits);
  };
  answer(Split::kTrain, 2);
  answer(Split::kTest, 1);
  const Json result = scores->result();
  EXPECT_DOUBLE_EQ(result["accuracy"].get<double>(), 0.625);
  EXPECT_DOUBLE_EQ(result["accuracy_2_pairs"].get<double>(), 1);
  EXPECT_DOUBLE_EQ(result["accuracy_4_pairs"].get<double>(), 0.25);
}

// Only queries 33 to 64 tokens after their pair are answered correctly.
TEST(Mqar, ScoresByTheDistanceOfThePair) {
  const auto task = mqar(R"({"vocabulary": 256, "length": 128, "pairs": 16})");
  const auto scores = task->scores(Split::kTest);
  std::map<int64_t, int64_t> asked;
  for (int64_t i = 0; i < 20; ++i) {
    const Example it = task->example(Split::kTest, i);
    std::map<int64_t, int64_t> begins;
    for (size_t j = 0; j < 32; j += 2) begins[it.tokens[j]] = int64_t(j);
    std::vector<float> logits;
    for (const int64_t place : task->places(it)) {
      const int64_t distance = place - begins.at(it.tokens[size_t(place)]), target = it.targets[size_t(place)];
      const bool right = distance > 32 && distance <= 64;
      ++asked[distance <= 16 ? 16 : distance <= 32 ? 32 : distance <= 64 ? 64 : 128];
      logits.resize(logits.size() + 256);
      logits[logits.size() - 256 + size_t(right ? target : (target + 1) % 256)] = 1;
    }
    scores->add(i, it, logits);
  }
  const Json result = scores->result();
  for (const auto& [most, count] : asked) {
    EXPECT_GT(count, 0);
    EXPECT_EQ(result.at(concat("accuracy_to_", most)), most == 64 ? 1.0 : 0.0) << most;
  }
  EXPECT_DOUBLE_EQ(result["accuracy"].get<double>(), double(asked[64]) / 320);
  EXPECT_EQ(result.size(), 2 + asked.size());
}

TEST(Mqar, ImpossibleSizesAreRefused) {
  const auto refused = [](const std::string& settings) { return testing::error_of([&] { mqar(settings); }); };
  EXPECT_NE(refused(R"({"length": 64, "pairs": 17})").find("17 pairs take 68 tokens, \"length\" is 64"),
            std::string::npos);
  EXPECT_NE(refused(R"({"vocabulary": 64})").find("must be above \"length\" = 64"), std::string::npos);
  EXPECT_NE(refused(R"({"length": 65})").find("even"), std::string::npos);
  EXPECT_NE(refused(R"({"lenght": 64})").find("did you mean"), std::string::npos);
}

}  // namespace
}  // namespace cortado
