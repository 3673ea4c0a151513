#include "cortado/evaluate/evaluate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "cortado/base/error.h"

namespace cortado {
namespace {

std::shared_ptr<LanguageModel> linear_model(const std::string& positions = "none") {
  const Json json = {{"vocabulary", 50},
                     {"dim", 16},
                     {"heads", 2},
                     {"layers", 2},
                     {"mixer", {{"mixer", "linear"}}},
                     {"positions", positions},
                     {"context", 16},
                     {"initialization", {{"type", "normal"}, {"std", 0.5}}},
                     {"feed_forward", {{"type", "mlp"}, {"dim", 32}}}};
  at::manual_seed(11);
  auto model = std::make_shared<LanguageModel>(ModelConfig::from_json(json, "test"));
  model->to(at::kDouble);
  return model;
}

at::Tensor random_tokens(int64_t count) {
  at::manual_seed(3);
  return at::randint(50, {count}, at::kLong);
}

// Returns -log p of each token but the first, given all tokens before it.
std::vector<double> losses(LanguageModel& model, const at::Tensor& tokens) {
  const auto logits = model.forward(tokens.slice(0, 0, -1).unsqueeze(0))[0];
  const auto picked = logits.log_softmax(-1).gather(1, tokens.slice(0, 1).unsqueeze(1)).neg();
  std::vector<double> found;
  for (int64_t i = 0; i < picked.size(0); ++i) found.push_back(picked[i].item<double>());
  return found;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

TEST(Evaluate, OneWindowIsTheWholeDocument) {
  const auto model = linear_model();
  const auto tokens = random_tokens(60);
  const auto result = evaluate_loss(*model, *tokens_in_memory(tokens), {.context = 100});
  EXPECT_EQ(result.tokens, 59);
  EXPECT_NEAR(result.total, sum(losses(*model, tokens)), 1e-8);
  EXPECT_NEAR(result.perplexity(), std::exp(result.total / 59), 1e-8);
}

// Tokens chosen greedily are all counted as right, random ones only if they happen to have the largest logit.
TEST(Evaluate, TokensThatWereTheLikeliest) {
  const auto model = linear_model();
  at::Tensor tokens = random_tokens(40);
  for (int64_t t = 1; t < 40; ++t) {
    if (t % 3 == 0) continue;
    tokens[t] = model->forward(tokens.slice(0, 0, t).unsqueeze(0))[0][t - 1].argmax();
  }
  const at::Tensor best = model->forward(tokens.slice(0, 0, -1).unsqueeze(0))[0].argmax(-1);
  const auto wanted = best.eq(tokens.slice(0, 1)).sum().item<int64_t>();
  EXPECT_GE(wanted, 26);
  const auto result = evaluate_loss(*model, *tokens_in_memory(tokens), {.context = 100});
  EXPECT_EQ(result.right, wanted);
  EXPECT_DOUBLE_EQ(result.accuracy(), double(wanted) / 39);
}

TEST(Evaluate, WindowsSideBySide) {
  const auto model = linear_model();
  const auto tokens = random_tokens(33);  // 32 predictions: four windows of 8
  double expected = 0;
  for (int64_t begin = 0; begin < 32; begin += 8) expected += sum(losses(*model, tokens.slice(0, begin, begin + 9)));
  const auto result = evaluate_loss(*model, *tokens_in_memory(tokens), {.context = 8});
  EXPECT_EQ(result.tokens, 32);
  EXPECT_NEAR(result.total, expected, 1e-8);
}

TEST(Evaluate, SlidingWindowsScoreEveryTokenOnceWithEnoughContext) {
  const auto model = linear_model();
  const auto tokens = random_tokens(31);  // 30 predictions
  double expected = sum(losses(*model, tokens.slice(0, 0, 9)));
  for (int64_t done = 8; done < 30;) {
    const int64_t end = std::min<int64_t>(done + 3, 30);
    const auto window = losses(*model, tokens.slice(0, end - 8, end + 1));
    for (size_t i = window.size() - static_cast<size_t>(end - done); i < window.size(); ++i) expected += window[i];
    done = end;
  }
  for (const int64_t tokens_per_call : {1, 24, 1000}) {
    const auto result = evaluate_loss(*model, *tokens_in_memory(tokens),
                                      {.context = 8, .stride = 3, .tokens_per_call = tokens_per_call});
    EXPECT_EQ(result.tokens, 30);
    EXPECT_NEAR(result.total, expected, 1e-8) << tokens_per_call << " tokens a call";
  }
}

TEST(Evaluate, MarksStandBeforeEveryWindowAndAreNotScored) {
  const auto model = linear_model();
  const auto tokens = random_tokens(20), marks = at::tensor({7, 3}, at::kLong);
  double expected = 0;
  struct Part {
    int64_t begin, end;
    size_t scored;
  };
  for (const Part& part : {Part{0, 9, 8}, Part{6, 15, 6}, Part{15, 20, 4}}) {
    const auto window = losses(*model, at::cat({marks, tokens.slice(0, part.begin, part.end)}));
    for (size_t i = window.size() - part.scored; i < window.size(); ++i) expected += window[i];
  }
  for (const int64_t tokens_per_call : {1, 1000}) {
    const auto result = evaluate_loss(*model, *tokens_in_memory(tokens, {0, 15}),
                                      {.context = 8, .stride = 6, .begin = {7, 3}, .tokens_per_call = tokens_per_call});
    EXPECT_EQ(result.tokens, 14 + 4);
    EXPECT_NEAR(result.total, expected, 1e-8) << tokens_per_call << " tokens a call";
  }
  EXPECT_THROW(evaluate_loss(*linear_model("learned"), *tokens_in_memory(tokens), {.context = 15, .begin = {7, 3}}),
               InputError);
}

TEST(Evaluate, DocumentsDontSeeEachOther) {
  const auto model = linear_model();
  const auto tokens = random_tokens(40);
  const std::vector<int64_t> starts = {0, 11, 12, 12, 30};  // one of a single token, one empty
  const double expected = sum(losses(*model, tokens.slice(0, 0, 11))) + sum(losses(*model, tokens.slice(0, 12, 30))) +
                          sum(losses(*model, tokens.slice(0, 30, 40)));
  const auto result = evaluate_loss(*model, *tokens_in_memory(tokens, starts), {.context = 20});
  EXPECT_EQ(result.tokens, 10 + 17 + 9);
  EXPECT_NEAR(result.total, expected, 1e-8);
}

TEST(Evaluate, ALimitStopsEarlyAndProgressCounts) {
  const auto model = linear_model();
  std::vector<std::pair<int64_t, int64_t>> seen;
  EvaluateOptions options = {.context = 8, .limit = 20, .tokens_per_call = 8};
  options.progress = [&](int64_t done, int64_t total) { seen.emplace_back(done, total); };
  const auto result = evaluate_loss(*model, *tokens_in_memory(random_tokens(100)), options);
  EXPECT_EQ(result.tokens, 24);
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{8, 24}, {16, 24}, {24, 24}}));
}

TEST(Evaluate, RefusesWhatCannotBe) {
  const auto model = linear_model();
  const auto tokens = tokens_in_memory(random_tokens(30));
  EXPECT_THROW(evaluate_loss(*model, *tokens, {.context = 0}), InputError);
  EXPECT_THROW(evaluate_loss(*model, *tokens, {.context = 8, .stride = 9}), InputError);
  EXPECT_THROW(evaluate_loss(*model, *tokens_in_memory(random_tokens(1)), {.context = 8}), InputError);
  EXPECT_THROW(evaluate_loss(*linear_model("learned"), *tokens, {.context = 17}), InputError);
  EXPECT_EQ(evaluate_loss(*linear_model("learned"), *tokens, {.context = 16}).tokens, 29);
}

}  // namespace
}  // namespace cortado
