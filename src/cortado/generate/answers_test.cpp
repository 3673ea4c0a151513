#include "cortado/evaluate/answers.h"

#include <gtest/gtest.h>

#include <limits>

#include "cortado/base/error.h"
#include "cortado/generate/session.h"
#include "cortado/testing/models.h"

namespace cortado::answers_test {

using testing::byte_model;

std::vector<int32_t> prompt(size_t begin, size_t count) {
  static const std::string kText =
      "First Citizen: Before we proceed any further, hear me speak. All: Speak, speak. You are all resolved?";
  const std::string part = kText.substr(begin, count);
  return {part.begin(), part.end()};
}

using Prompts = std::vector<std::vector<int32_t>>;

std::vector<int32_t> joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A greedy answer of a single sequence, and each token's logit lead over the second-best token.
struct Alone {
  std::vector<int32_t> tokens;
  std::vector<double> lead;
};

Alone answer_alone(const std::shared_ptr<LanguageModel>& model, const std::vector<int32_t>& prompt, int64_t count) {
  Session session(model, nullptr);
  session.prefill(prompt);
  Alone alone;
  for (int64_t i = 0; i < count; ++i) {
    const auto [values, tokens] = session.logits().topk(2);
    alone.lead.push_back((values[0] - values[1]).item<double>());
    alone.tokens.push_back(static_cast<int32_t>(tokens[0].item<int64_t>()));
    session.step(alone.tokens.back());
  }
  return alone;
}

// Expects equal answers, or a first difference where rounding decides between two tokens.
void expect_same(const std::vector<int32_t>& actual, const Alone& alone, size_t length) {
  ASSERT_LE(actual.size(), alone.tokens.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == alone.tokens[i]) continue;
    EXPECT_LT(alone.lead[i], 1e-3) << "token " << i;
    return;
  }
  EXPECT_EQ(actual.size(), length);
}

size_t before(const std::vector<int32_t>& tokens, int32_t stop) {
  return static_cast<size_t>(std::find(tokens.begin(), tokens.end(), stop) - tokens.begin());
}

class EveryMixerAnswers : public ::testing::TestWithParam<std::string> {};

void expect_together_as_alone(const std::shared_ptr<LanguageModel>& model, const Prompts& prompts) {
  constexpr int64_t kTokens = 16;
  std::vector<Alone> alone;
  for (const auto& each : prompts) alone.push_back(answer_alone(model, each, kTokens));
  const int32_t stop = alone[1].tokens[5];  // makes rows end at different times
  for (const int64_t chunk : {10, 512}) {
    const auto answers = answer_all(*model, prompts, {.tokens = kTokens, .stops = {stop}, .chunk = chunk});
    ASSERT_EQ(answers.tokens.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      expect_same(answers.tokens[i], alone[i], before(alone[i].tokens, stop));
    }
  }
}

TEST_P(EveryMixerAnswers, TogetherAsAlone) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto model = byte_model(GetParam());
    model->to(type);
    expect_together_as_alone(model, {prompt(0, 31), prompt(7, 29), prompt(20, 36), prompt(3, 29)});
    // 23 shared tokens; two equal prompts; one prompt that is a prefix of the other.
    expect_together_as_alone(
        model, {joined(prompt(0, 23), prompt(60, 9)), joined(prompt(0, 23), prompt(8, 14)), prompt(0, 31)});
    expect_together_as_alone(model, {prompt(5, 30), prompt(5, 30)});
    expect_together_as_alone(model, {prompt(5, 20), prompt(5, 31)});
  }
}

INSTANTIATE_TEST_SUITE_P(Answers, EveryMixerAnswers, ::testing::ValuesIn(testing::causal_mixers()),
                         [](const auto& info) {
                           return std::to_string(info.index) + "_" +
                                  parse_json(info.param, "test")["mixer"].template get<std::string>();
                         });

TEST(Answers, PromptsOfOneLength) {
  const auto model = byte_model(R"({"mixer": "softmax"})");
  model->to(at::kDouble);
  const std::vector<std::vector<int32_t>> prompts = {prompt(0, 20), prompt(9, 20), prompt(30, 20)};
  const auto answers = answer_all(*model, prompts, {.tokens = 10});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(answers.tokens[i], answer_alone(model, prompts[i], 10).tokens);
}

TEST(Answers, ProgressCountsEveryToken) {
  const auto model = byte_model(R"({"mixer": "linear"})");
  std::vector<int64_t> seen;
  AnswerOptions options = {.tokens = 3, .chunk = 8, .progress = [&](int64_t done) { seen.push_back(done); }};
  answer_all(*model, {prompt(0, 20), prompt(5, 22)}, options);
  // Pieces of 8, 8 and 3 tokens of two prompts, then the rest (1 + 3), and two generated tokens read back.
  EXPECT_EQ(seen, (std::vector<int64_t>{16, 32, 38, 42, 44, 46}));
}

TEST(Answers, StateIsCountedForOneSequence) {
  const auto model = byte_model(R"({"mixer": "linear"})");
  const auto one = answer_all(*model, {prompt(0, 20)}, {.tokens = 1});
  const auto two = answer_all(*model, {prompt(0, 20), prompt(5, 22)}, {.tokens = 1});
  EXPECT_EQ(one.state_bytes, static_cast<double>(model->state_bytes(20)));
  EXPECT_EQ(two.state_bytes, one.state_bytes);
}

TEST(Answers, RefusesWhatCannotBe) {
  const auto model = byte_model(R"({"mixer": "linear"})");
  EXPECT_THROW(answer_all(*model, {}, {}), InputError);
  EXPECT_THROW(answer_all(*model, {prompt(0, 5), {}}, {}), InputError);
  EXPECT_THROW(answer_all(*model, {{300}}, {}), InputError);
  EXPECT_TRUE(answer_all(*model, {prompt(0, 5)}, {.tokens = 0}).tokens[0].empty());
  const at::NoGradGuard no_grad;
  model->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THROW(answer_all(*model, {prompt(0, 5)}, {}), Failure);
}

// Logits beyond the tokenizer's vocabulary are never chosen.
TEST(Answers, WriteTokensOfTheVocabularyOnly) {
  const auto model = byte_model(R"({"mixer": "latte"})");
  const Prompts prompts = {prompt(0, 20), prompt(3, 30)};
  int32_t most = 0;
  for (const int64_t vocabulary : {int64_t{0}, int64_t{20}}) {
    const Answers answers = answer_all(*model, prompts, {.tokens = 20, .vocabulary = vocabulary});
    most = 0;
    for (const auto& tokens : answers.tokens) most = std::max(most, *std::max_element(tokens.begin(), tokens.end()));
    EXPECT_EQ(most < 20, vocabulary == 20) << most;
  }
}

}  // namespace cortado::answers_test
