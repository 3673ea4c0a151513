#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/evaluate/evaluate.h"
#include "cortado/testing/models.h"

namespace cortado::context_loss_test {

using testing::byte_model;

at::Tensor random_bytes(int64_t count) {
  at::manual_seed(3);
  return at::randint(256, {count}, at::kLong);
}

// The definition: one window per half length.
double definition(LanguageModel& model, const at::Tensor& tokens, int64_t length, int64_t first, int64_t count) {
  const int64_t half = length / 2;
  double total = 0;
  for (int64_t begin = first; begin < first + count; begin += half) {
    const int64_t end = std::min(begin + half, first + count);
    const auto window = tokens.slice(0, begin - half, end);
    const auto logits = model.forward(window.slice(0, 0, -1).unsqueeze(0))[0].log_softmax(-1);
    const auto targets = window.slice(0, half);
    total -= logits.slice(0, half - 1).gather(1, targets.unsqueeze(1)).sum().item<double>();
  }
  return total;
}

class ContextLoss : public ::testing::TestWithParam<std::string> {};

TEST_P(ContextLoss, IsTheDefinitionWhateverThePieces) {
  const at::NoGradGuard no_grad;
  const auto model = byte_model(GetParam());
  model->to(at::kDouble);
  const auto tokens = random_bytes(100);
  for (const int64_t length : {2, 5, 8, 32, 64}) {
    const double expected = definition(*model, tokens, length, 32, 50);
    for (const int64_t tokens_per_call : {1, 7, 20, 40, 4096}) {
      const auto result = evaluate_in_context(
          *model, tokens, {.length = length, .first = 32, .count = 50, .tokens_per_call = tokens_per_call});
      EXPECT_EQ(result.tokens, 50);
      EXPECT_NEAR(result.total, expected, 1e-7 * expected) << length << " in calls of " << tokens_per_call;
    }
  }
}

TEST_P(ContextLoss, ReadsMarksBeforeEveryWindow) {
  const at::NoGradGuard no_grad;
  const auto model = byte_model(GetParam());
  model->to(at::kDouble);
  const auto tokens = random_bytes(100), marks = at::tensor({9, 200}, at::kLong);
  double expected = 0;
  for (const auto& [begin, end] : {std::pair{32, 36}, {36, 40}, {40, 42}}) {
    const auto window = at::cat({marks, tokens.slice(0, begin - 4, end)});
    const auto logits = model->forward(window.slice(0, 0, -1).unsqueeze(0))[0].log_softmax(-1);
    expected -= logits.slice(0, 5).gather(1, window.slice(0, 6).unsqueeze(1)).sum().item<double>();
  }
  for (const int64_t tokens_per_call : {1, 7, 4096}) {
    const ContextLossOptions options = {
        .length = 8, .first = 32, .count = 10, .begin = {9, 200}, .tokens_per_call = tokens_per_call};
    EXPECT_NEAR(evaluate_in_context(*model, tokens, options).total, expected, 1e-7 * expected) << tokens_per_call;
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, ContextLoss,
                         ::testing::Values(R"({"mixer": "linear"})", R"({"mixer": "softmax"})",
                                           R"({"mixer": "sliding_window", "window": 6})"));

TEST(ContextLoss, ProgressReachesItsTotal) {
  const auto model = byte_model(R"({"mixer": "linear"})");
  for (const int64_t count : {48, 50}) {
    int64_t last = 0, whole = 0;
    ContextLossOptions options = {.length = 16, .first = 32, .count = count, .begin = {1}, .tokens_per_call = 20};
    options.progress = [&](int64_t done, int64_t total) {
      EXPECT_GT(done, last);
      last = done;
      whole = total;
    };
    evaluate_in_context(*model, random_bytes(100), options);
    EXPECT_EQ(last, whole);
  }
}

TEST(ContextLoss, RefusesWhatCannotBe) {
  const auto model = byte_model(R"({"mixer": "linear"})");
  const auto tokens = random_bytes(100);
  EXPECT_THROW(evaluate_in_context(*model, tokens, {.length = 1, .first = 32, .count = 8}), InputError);
  EXPECT_THROW(evaluate_in_context(*model, tokens, {.length = 64, .first = 31, .count = 8}), InputError);
  EXPECT_THROW(evaluate_in_context(*model, tokens, {.length = 64, .first = 32, .count = 69}), InputError);
  EXPECT_EQ(evaluate_in_context(*model, tokens, {.length = 64, .first = 32, .count = 68}).tokens, 68);
  const auto learned = byte_model(R"({"mixer": "softmax"})", "learned", 16);
  EXPECT_THROW(evaluate_in_context(*learned, tokens, {.length = 17, .first = 32, .count = 8}), InputError);
}

}  // namespace cortado::context_loss_test
