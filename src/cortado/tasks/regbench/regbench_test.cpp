// Compares the statistics of the generator and the baselines' accuracies with those of an independent implementation of
// the public generator.
#include <gtest/gtest.h>

#include "cortado/tasks/regbench/dfa.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/statistics.h"

namespace cortado {
namespace {

std::unique_ptr<TaskExamples> regbench(const std::string& settings) {
  return regbench_task().open(parse_json(settings, "test"), "task");
}

TEST(Regbench, DrawsAsThePublicGenerator) { testing::expect_published(*regbench("{}")); }

// 0 -a-> 1, 0 -b-> 2; 1 and 2 have -c-> 0 and so are equivalent; 3 is unreachable.
TEST(Regbench, EqualAndUnreachedStatesGo) {
  Dfa dfa;
  dfa.next.assign(4, {});
  for (auto& edges : dfa.next) edges.fill(-1);
  dfa.next[0][1] = 1;
  dfa.next[0][2] = 2;
  dfa.next[1][3] = dfa.next[2][3] = 0;
  dfa.next[3][4] = 0;
  const Dfa small = minimal(dfa);
  ASSERT_EQ(small.states(), 2);
  EXPECT_EQ(small.letters(0), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(small.step(0, 1), 1);
  EXPECT_EQ(small.step(0, 2), 1);
  EXPECT_EQ(small.letters(1), (std::vector<int64_t>{3}));
  EXPECT_EQ(small.step(1, 3), 0);
  EXPECT_EQ(small.step(small.step(0, 3), 1), -1);
}

TEST(Regbench, AnExamplesTargetsAreTheNextLettersAndNoSeparators) {
  const auto task = regbench("{}");
  for (int64_t i = 0; i < 50; ++i) {
    const Example it = task->example(Split::kValidation, i);
    ASSERT_EQ(it.tokens.size(), it.targets.size());
    EXPECT_LE(int64_t(it.tokens.size()), task->shape().length);
    for (size_t t = 0; t + 1 < it.tokens.size(); ++t) {
      EXPECT_EQ(it.targets[t], it.tokens[t + 1] == kSeparator ? kIgnored : it.tokens[t + 1]);
    }
    EXPECT_GE(it.targets.back(), 1);
    EXPECT_EQ(task->places(it).size(), it.tokens.size());
  }
  EXPECT_NE(task->example(Split::kTrain, 3).tokens, task->example(Split::kTest, 3).tokens);
  EXPECT_NE(task->example(Split::kTrain, 3).tokens, regbench(R"({"seed": 1})")->example(Split::kTrain, 3).tokens);
}

// An automaton with two states and one letter per state, for which the scores are known.
TEST(Regbench, ScoresAllowedLettersAndTheDistanceOfProbabilities) {
  const auto task = regbench(R"({"least_states": 2, "most_states": 2, "least_letters": 1, "most_edges": 1})");
  const Example it = task->example(Split::kTest, 0);
  const auto scores = task->scores(Split::kTest), uniform = task->scores(Split::kTest);
  std::vector<float> right(it.tokens.size() * kSymbols, -1e9F), flat(right.size(), 0);
  // The states alternate, so a letter depends only on whether its position in the string is odd or even.
  std::vector<int64_t> cycle(2, -1);
  size_t place = 0, wrong = 0, asked = 0;
  const auto mark = [&](size_t t) { cycle[place % 2] = it.tokens[t]; };
  for (size_t t = 0; t < it.tokens.size(); ++t, ++place) {
    if (it.tokens[t] == kSeparator) {
      place = size_t(-1);
    } else {
      mark(t);
    }
  }
  place = 0;
  for (size_t t = 0; t < it.tokens.size(); ++t) {
    place = it.tokens[t] == kSeparator ? 0 : place + 1;
    const bool end = t + 1 < it.tokens.size() && it.tokens[t + 1] == kSeparator;
    asked += !end;
    wrong += !end && t == 0;
    right[t * kSymbols + size_t(t == 0 ? kPad : cycle[place % 2])] = 0;
  }
  scores->add(0, it, right);
  uniform->add(0, it, flat);
  EXPECT_NEAR(scores->result()["accuracy"].get<double>(), 1 - double(wrong) / double(asked), 1e-12);
  EXPECT_NEAR(scores->result()["difference"].get<double>(), 2 / double(it.tokens.size()), 1e-6);
  EXPECT_NEAR(uniform->result()["difference"].get<double>(), 2 * 19.0 / 20, 1e-6);
  EXPECT_EQ(uniform->result()["accuracy"].get<double>(), 0);  // it predicts the padding
}

TEST(Regbench, ImpossibleSizesAreRefused) {
  const auto refused = [](const std::string& settings) { return testing::error_of([&] { regbench(settings); }); };
  EXPECT_NE(refused(R"({"most_edges": 4})").find("most_edges"), std::string::npos);
  EXPECT_NE(refused(R"({"least_states": 9, "most_states": 8})").find("most_states"), std::string::npos);
  EXPECT_NE(refused(R"({"strings": 8})").find("unknown key"), std::string::npos);
}

}  // namespace
}  // namespace cortado
