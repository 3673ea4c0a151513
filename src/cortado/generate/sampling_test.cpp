#include "cortado/generate/sampling.h"

#include <gtest/gtest.h>

#include <limits>

#include "cortado/base/error.h"

namespace cortado {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::map<int32_t, double> distribution(const SamplingOptions& options, const std::vector<float>& logits,
                                       const std::vector<int32_t>& recent = {}) {
  Sampler sampler(options);
  std::map<int32_t, double> found;
  double total = 0;
  for (const auto& c : sampler.candidates(at::tensor(logits), recent)) total += c.weight;
  for (const auto& c : sampler.candidates(at::tensor(logits), recent)) found[c.token] = c.weight / total;
  return found;
}

// Returns logits whose softmax is the given probabilities.
std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3.0));
  return logits;
}

void expect_probabilities(const std::map<int32_t, double>& got, const std::map<int32_t, double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [token, p] : expected) {
    ASSERT_TRUE(got.contains(token)) << "token " << token;
    EXPECT_NEAR(got.at(token), p, 1e-6) << "token " << token;
  }
}

TEST(Sampling, WithoutOptionsIsTheSoftmax) {
  expect_probabilities(distribution({}, logits_of({0.5, 0.2, 0.3})), {{0, 0.5}, {1, 0.2}, {2, 0.3}});
}

TEST(Sampling, TemperatureIsAPowerOfTheProbabilities) {
  // p^(1/0.5) = p²: 0.25, 0.04 and 0.09, divided by their sum 0.38.
  expect_probabilities(distribution({.temperature = 0.5}, logits_of({0.5, 0.2, 0.3})),
                       {{0, 0.25 / 0.38}, {1, 0.04 / 0.38}, {2, 0.09 / 0.38}});
}

TEST(Sampling, ZeroTemperatureTakesTheLikeliestAndTheLowerOfTwo) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.sample(at::tensor({1.0F, 5.0F, 5.0F, 2.0F}), {}, 0), 1);
  expect_probabilities(distribution({.temperature = 0}, {1, 2}), {{1, 1.0}});
}

TEST(Sampling, TinyTemperatureIsGreedyWithoutOverflow) {
  expect_probabilities(distribution({.temperature = 1e-30}, {1e4F, -1e4F}), {{0, 1.0}, {1, 0.0}});
}

TEST(Sampling, TopKKeepsTheLikeliest) {
  expect_probabilities(distribution({.top_k = 2}, logits_of({0.1, 0.4, 0.3, 0.2})), {{1, 4.0 / 7}, {2, 3.0 / 7}});
  expect_probabilities(distribution({.top_k = 1}, {2, 2, 2}), {{0, 1.0}});
  EXPECT_EQ(distribution({.top_k = 9}, {1, 2, 3}).size(), 3U);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const auto logits = logits_of({0.1, 0.4, 0.3, 0.2});
  expect_probabilities(distribution({.top_p = 0.65}, logits), {{1, 4.0 / 7}, {2, 3.0 / 7}});
  expect_probabilities(distribution({.top_p = 0.75}, logits), {{1, 4.0 / 9}, {2, 3.0 / 9}, {3, 2.0 / 9}});
  expect_probabilities(distribution({.top_p = 1e-9}, logits), {{1, 1.0}});
}

TEST(Sampling, MinPIsRelativeToTheLikeliest) {
  expect_probabilities(distribution({.min_p = 0.6}, logits_of({0.1, 0.4, 0.3, 0.2})), {{1, 4.0 / 7}, {2, 3.0 / 7}});
  expect_probabilities(distribution({.min_p = 1.0}, logits_of({0.2, 0.5, 0.3})), {{1, 1.0}});
}

TEST(Sampling, TopPCountsWhatTopKHasLeft) {
  // After top-k 2 the probabilities are 4/7 and 3/7, so the first token alone reaches 0.5. Of the original
  // probabilities, 0.4 would not.
  expect_probabilities(distribution({.top_k = 2, .top_p = 0.5}, logits_of({0.1, 0.4, 0.3, 0.2})), {{1, 1.0}});
}

TEST(Sampling, RepetitionPenaltyLowersRecentTokensOnly) {
  const SamplingOptions options = {.repetition_penalty = 2.0, .repetition_window = 2};
  // 2 is outside the window; 0 and 1 are inside.
  const auto got = distribution(options, {2, -1, 1, 0}, {2, 0, 1, 1, 0});
  expect_probabilities(got, distribution({}, {1, -2, 1, 0}));
}

TEST(Sampling, MinusInfinityIsNeverDrawn) {
  Sampler sampler({.temperature = 5.0});
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_NE(sampler.sample(at::tensor({0.0F, -kInfinity, 1.0F}), {}, position), 1);
  }
}

TEST(Sampling, DrawsFollowTheDistribution) {
  Sampler sampler({.seed = 7});
  const auto logits = at::tensor(logits_of({0.5, 0.2, 0.05, 0.25}));
  const std::vector<double> expected = {0.5, 0.2, 0.05, 0.25};
  std::vector<int> counts(4);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sampler.sample(logits, {}, static_cast<uint64_t>(i)))];
  double chi2 = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double mean = expected[i] * kDraws;
    chi2 += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  EXPECT_LT(chi2, 16.3);  // 3 degrees of freedom, 0.1 %
  EXPECT_GT(chi2, 0.02);  // draws that fit too well are not random
}

TEST(Sampling, SeedAndPositionDecideTheDraw) {
  const auto logits = at::zeros({1000});
  const auto draw = [&](int64_t seed) {
    Sampler sampler({.seed = seed});
    std::vector<int32_t> tokens;
    for (uint64_t position = 0; position < 20; ++position) tokens.push_back(sampler.sample(logits, {}, position));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  const auto all = draw(1);
  Sampler later({.seed = 1});
  EXPECT_EQ(later.sample(logits, {}, 13), all[13]);
}

TEST(Sampling, PresenceAndFrequencyArePaidForByWhatWasWritten) {
  const auto logits = at::tensor({3.0F, 2.5F, 0.0F, 1.0F});
  const std::vector<int32_t> written = {0, 0, 1, 3, 9};  // 9 is beyond the scores
  const auto scores = [&](const SamplingOptions& options) {
    Sampler sampler(options);
    std::vector<float> found(4);
    for (const auto& c : sampler.candidates(logits, written, written)) found[static_cast<size_t>(c.token)] = c.score;
    return found;
  };
  EXPECT_EQ(scores({.presence_penalty = 1.5}), (std::vector<float>{1.5F, 1.0F, 0.0F, -0.5F}));
  EXPECT_EQ(scores({.frequency_penalty = 0.5}), (std::vector<float>{2.0F, 2.0F, 0.0F, 0.5F}));
  EXPECT_EQ(scores({.presence_penalty = -1, .frequency_penalty = 1}), (std::vector<float>{2.0F, 2.5F, 0.0F, 1.0F}));
  // Tokens of the prompt are not penalised.
  Sampler greedy({.temperature = 0, .presence_penalty = 2});
  EXPECT_EQ(greedy.sample(logits, written, 0), 0);
  EXPECT_EQ(greedy.sample(logits, written, 0, std::vector<int32_t>{0}), 1);
}

TEST(Sampling, BiasIsAddedBeforeAllElse) {
  const auto logits = at::tensor({3.0F, 2.5F, 0.0F, 1.0F});
  EXPECT_EQ(Sampler({.temperature = 0, .bias = {{2, 4.0}}}).sample(logits, {}, 0), 2);
  EXPECT_EQ(Sampler({.temperature = 0, .bias = {{0, -100}, {1, -1}}}).sample(logits, {}, 0), 1);
  EXPECT_EQ(Sampler({.top_k = 1, .bias = {{3, 100}}}).sample(logits, {}, 0), 3);
  EXPECT_THROW(Sampler({.bias = {{4, 1.0}}}).sample(logits, {}, 0), InputError);
}

TEST(Sampling, ReadsAnyFloatingPointType) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.sample(at::tensor({0.0F, 3.0F}).to(at::kBFloat16), {}, 0), 1);
  EXPECT_EQ(sampler.sample(at::tensor({0.0F, 3.0F}).to(at::kDouble), {}, 0), 1);
}

TEST(Sampling, BrokenLogitsAreAFailure) {
  Sampler sampler({});
  EXPECT_THROW(sampler.sample(at::tensor({0.0F, std::nanf("")}), {}, 0), Failure);
  EXPECT_THROW(sampler.sample(at::tensor({0.0F, kInfinity}), {}, 0), Failure);
  EXPECT_THROW(sampler.sample(at::tensor({-kInfinity, -kInfinity}), {}, 0), Failure);
}

TEST(Sampling, OptionsOutOfRangeAreRefused) {
  const std::vector<SamplingOptions> bad = {
      {.temperature = -1},
      {.temperature = std::nan("")},
      {.top_k = -1},
      {.top_p = 0},
      {.top_p = 1.5},
      {.min_p = -0.1},
      {.min_p = 2},
      {.repetition_penalty = 0},
      {.repetition_penalty = 1e-300},  // becomes 0 in float32
      {.repetition_penalty = -1},
      {.repetition_window = -1},
      {.top_p = std::nan("")},
      {.presence_penalty = 2.5},
      {.frequency_penalty = std::nan("")},
      {.bias = {{1, 101.0}}},
      {.bias = {{-1, 1.0}}},
  };
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_THROW(Sampler{bad[i]}, InputError) << "case " << i;
}

}  // namespace
}  // namespace cortado
