// Learning the caches of a conversion.
#include "cortado/convert/cache.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/convert/sinks.h"
#include "cortado/testing/conversions.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

using namespace testing::conversions;

class CacheConversionTest : public ConversionTest {
 protected:
  void SetUp() override { CORTADO_NEEDS("macchiato"); }

  static Json settings() {
    return parse_json(
        R"({"mixer": "macchiato", "window": 5, "source": "conv", "latents": 8, "window_logit": 2, "cache": 6, "chunk": 4,
            "score": "learned"})",
        "test");
  }

  LinearizeRequest cache_request(const std::string& source, const std::string& out) const {
    LinearizeRequest result = request(source, out, settings());
    result.plan.context = 48;
    result.plan.cache_tokens = 24 * 48;
    return result;
  }

  std::shared_ptr<const Chunks> chunks(int64_t length) const {
    const auto text = open_text_as_dataset({.files = {path("text.txt")}, .validation = 0, .progress = false}).train;
    return std::make_shared<Chunks>(text, length, 3, 1337);
  }
};

TEST_F(CacheConversionTest, LessonsAreTheMixersOwnOutputs) {
  const std::string run = make_run(small_config(kGrouped));
  expect_own_outputs_as_lessons(*convert(run, settings()));
}

// The end repeats statements from before; the remaining tokens are the text's, in order.
TEST_F(CacheConversionTest, RemindersRepeatWhatTheyHide) {
  const auto tokenizer = make_tokenizer("byte", {});
  const auto text = chunks(400);
  const Reminders reminders(text, *tokenizer, 7);
  int64_t with = 0;
  for (int64_t n = 0; n < 40; ++n) {
    const Reminders::Text found = reminders.text(n);
    ASSERT_EQ(found.tokens.sizes(), (at::IntArrayRef{1, 400}));
    EXPECT_EQ(found.tokens.const_data_ptr<int64_t>()[0], text->batch(n, 1).tokens.const_data_ptr<int64_t>()[0]);
    const auto string_of = [&](int64_t from, int64_t to) {
      const Tensor part = found.tokens[0].slice(0, from, to).contiguous();
      return std::string(part.const_data_ptr<int64_t>(), part.const_data_ptr<int64_t>() + part.numel());
    };
    const std::string tail = string_of(400 - found.reminded, 400), before = string_of(0, 400 - found.reminded);
    with += found.reminded > 0 ? 1 : 0;
    // Each statement begins with a space and ends unlike any word of the text.
    for (size_t from = 0; from < tail.size();) {
      size_t to = from + 1;
      while (to < tail.size() && before.find(tail.substr(from, to + 1 - from)) != std::string::npos) ++to;
      EXPECT_GE(to - from, 9u) << tail.substr(from);
      from = to;
    }
    EXPECT_TRUE(found.tokens.equal(reminders.text(n).tokens));
  }
  EXPECT_GT(with, 20);
}

// If the tokenizer cannot write statements, they are stretches of the text.
TEST_F(CacheConversionTest, RemindersAreStretchesWhereNothingElseCanBeWritten) {
  const auto tokenizer = make_tokenizer("char", {path("text.txt")});
  const auto dataset =
      open_text_as_dataset({.files = {path("text.txt")}, .validation = 0, .progress = false}, tokenizer).train;
  const Reminders reminders(std::make_shared<Chunks>(dataset, 200, 1, 3), *tokenizer, 7);
  for (int64_t n = 0; n < 8; ++n) {
    const auto found = reminders.text(n);
    EXPECT_EQ(found.tokens.size(1), 200);
    EXPECT_GT(found.reminded, 0);
  }
}

// The weights looked back at, by their definition; and the regressions on them, by least squares on all data at once.
TEST_F(CacheConversionTest, TheScoresAreRegressionsOfLaterAttention) {
  constexpr int64_t kLength = 400, kTexts = 5, kBehind = 5 + 4, kUsable = kLength - kBehind - kBehind / 3;
  const auto model = convert(make_run(small_config(kGrouped)), settings());
  const auto text = chunks(kLength);
  const auto tokenizer = make_tokenizer("byte", {});
  const auto lessons = learn_caches(*model, text, *tokenizer, {.tokens = kTexts * kLength, .seed = 5}, {});
  ASSERT_EQ(lessons.size(), 3u);
  const Reminders reminders(text, *tokenizer, 5);
  const auto looked_back = [&](const Mixer& mixer, const Tensor& x) {
    auto parameters = mixer.named_parameters();
    const auto heads = [&](const char* name, int64_t count) {
      const Tensor all = at::linear(x, parameters[concat(name, ".weight")], parameters[concat(name, ".bias")]);
      const Tensor split = all.view({1, kLength, count, 8});
      return apply_rotary(split, at::arange(kLength).unsqueeze(0), Rotary(10000.0)).transpose(1, 2);
    };
    const Tensor q = heads("window_q", 4), k = heads("window_k", 2).repeat_interleave(2, 1);
    const Tensor later = at::ones({kLength, kLength}, at::kBool).triu(1);
    const Tensor all = at::softmax((at::matmul(q, k.transpose(2, 3)) / std::sqrt(8.0)).masked_fill(later, -1e30), -1);
    return all.tril(-kBehind).view({2, 2, kLength, kLength}).amax(1);
  };
  std::vector<Tensor> given, wanted;
  Tensor recall = at::zeros({2}, at::kDouble);
  for (int64_t n = 0; n < kTexts; ++n) {
    const auto found = reminders.text(n);
    ASSERT_GT(found.reminded, 0);
    const auto inputs = forced_inputs(*model, found.tokens);
    Tensor far = at::zeros({kUsable}, at::kDouble), near;
    for (size_t layer = 0; layer < 3; ++layer) {
      const Tensor all = looked_back(*model->mixers()[layer], inputs[layer]);
      EXPECT_CLOSE(cache_student_of(*model->mixers()[layer])->look_back(inputs[layer]).weights[0].to(at::kDouble), all,
                   1e-5);
      const Tensor reminder = all.slice(1, kLength - found.reminded).slice(2, 0, kUsable);
      far = at::maximum(far, reminder.amax(1).amax(0));
      if (layer != 1) continue;
      near = std::get<0>(all.slice(1, 0, kLength - found.reminded).topk(4, 1)).mean(1).slice(1, 0, kUsable);
      recall += reminder.slice(2, 1).amax(2).mean(1).to(at::kDouble) / kTexts;
    }
    given.push_back(at::cat({inputs[1][0], at::ones({kLength, 1}, inputs[1].options())}, 1).narrow(0, 0, kUsable));
    const Tensor lasts = (far + 0.1).log(), fades = (near + 1e-3).log();
    wanted.push_back(at::stack({lasts, fades[0], lasts, fades[1]}, 1));
  }
  const Tensor features = at::cat(given).detach(), targets = at::cat(wanted).detach();
  const double ridge = 1e-3 * (features.square().sum() / features.size(1)).item<double>();
  const Tensor more = at::cat({features, at::eye(25, at::kDouble) * std::sqrt(ridge)});
  const Tensor map = std::get<0>(at::linalg_lstsq(more, at::cat({targets, at::zeros({25, 4}, at::kDouble)})));
  EXPECT_CLOSE(lessons[1].weight.to(at::kDouble), map.narrow(0, 0, 24).t(), 1e-4);
  EXPECT_CLOSE(lessons[1].bias.to(at::kDouble), map[24], 1e-4);
  const Tensor wrong = (at::matmul(features, map) - targets).square().mean(0),
               varied = targets.var(0, /*unbiased=*/false), explained = 1 - wrong / varied;
  EXPECT_NEAR(lessons[1].lasting, explained[0].item<double>(), 1e-4);
  EXPECT_NEAR(lessons[1].fading, (explained[1] + explained[3]).item<double>() / 2, 1e-4);
  EXPECT_CLOSE(at::tensor(lessons[1].recall), recall, 1e-5);
}

// Without room for a statement, both scores have the fading target.
TEST_F(CacheConversionTest, WithoutRemindersBothScoresAreOne) {
  const auto model = convert(make_run(small_config(kGrouped)), settings());
  const auto lessons = learn_caches(*model, chunks(64), *make_tokenizer("byte", {}), {.tokens = 8 * 64}, {});
  for (const CacheLesson& lesson : lessons) {
    const Tensor weight = lesson.weight.unflatten(0, {2, 2});
    EXPECT_TRUE(weight.select(1, 0).equal(weight.select(1, 1)));
    EXPECT_GT(weight.abs().max().item<double>(), 0);
    EXPECT_EQ(lesson.recall, (std::vector<double>{0, 0}));
  }
}

// A conversion learns the scores first, continues where it was stopped, and passes the scores to conversions that
// begin with it.
TEST_F(CacheConversionTest, LearnsACacheAndThenTheLatents) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest whole = cache_request(run, "whole");
  const auto result = linearize(whole);
  ASSERT_TRUE(result.done && result.cache);
  EXPECT_EQ(result.cache->heads, 6);
  EXPECT_EQ(read_json_file(path("whole/report.json"))["cache"]["recall"]["2"].size(), 2u);
  const ModelConfig config = read_config(path("whole"));
  for (const Json& layer : config.layers) {
    EXPECT_EQ(layer["score"], "learned");
    EXPECT_EQ(layer["cache"], 6);
  }

  LinearizeRequest stopped = cache_request(run, "stopped");
  int64_t asked = 0;
  stopped.stop = [&] { return ++asked == 5; };
  EXPECT_FALSE(linearize(stopped).done);
  EXPECT_TRUE(linearize(resuming("stopped")).done);
  expect_same_weights(path("stopped") + "/best.safetensors", path("whole/best.safetensors"));
  LinearizeRequest later = cache_request(run, "later");
  later.stop_at = 3;
  EXPECT_FALSE(linearize(later).done);
  const auto resumed = linearize(resuming("later"));
  ASSERT_TRUE(resumed.done && resumed.cache);
  EXPECT_EQ(resumed.cache->recall, result.cache->recall);
  expect_same_weights(path("later") + "/best.safetensors", path("whole/best.safetensors"));

  LinearizeRequest killed = cache_request(run, "killed");  // before the scores were saved: they are learned again
  killed.stop_at = 3;
  EXPECT_FALSE(linearize(killed).done);
  std::filesystem::remove(path("killed/trainer.safetensors"));
  EXPECT_TRUE(linearize(resuming("killed")).done);
  expect_same_weights(path("killed") + "/best.safetensors", path("whole/best.safetensors"));

  apply_learned({.source = run, .learned = path("whole/learned.safetensors"), .out = path("applied")});
  EXPECT_EQ(read_config(path("applied")).to_json(), config.to_json());
}

// A larger cache keeps the learned scores, unless they are to be learned again; then the old ones may have any shape.
TEST_F(CacheConversionTest, LearnsItsScoresOnceOrAgain) {
  const std::string run = make_run(small_config(kGrouped));
  ASSERT_TRUE(linearize(cache_request(run, "whole")).cache);
  apply_learned({.source = run, .learned = path("whole/learned.safetensors"), .out = path("applied")});
  LinearizeRequest larger = cache_request(run, "larger");
  larger.plan.from = path("whole/learned.safetensors");
  larger.plan.conversion.mixer["cache"] = 9;
  const auto grown = linearize(larger);
  EXPECT_TRUE(grown.done && !grown.cache);
  EXPECT_EQ(read_config(path("larger")).layers[2]["cache"], 9);
  const auto score = [&](const char* name) {
    return open_model(path(name))->named_parameters()[cache_names(2).weight];
  };
  EXPECT_TRUE(score("larger").equal(score("applied")));
  larger.out = path("again");  // unless they are learned again
  larger.plan.cache_again = true;
  larger.plan.seed = 5;
  ASSERT_TRUE(linearize(larger).cache);
  EXPECT_FALSE(score("again").equal(score("applied")));

  Learned old = load_learned(path("whole/learned.safetensors"));  // of another shape, too
  for (auto& [name, tensor] : old.weights) {
    if (is_score(name)) tensor = tensor.slice(0, 0, 1);
  }
  save_learned(path("old.safetensors"), old);
  larger.plan.from = path("old.safetensors");
  larger.out = path("renewed");
  ASSERT_TRUE(linearize(larger).cache);
  EXPECT_TRUE(score("renewed").equal(score("again")));
  larger.plan.cache_again = false;
  larger.out = path("refused");
  EXPECT_NE(testing::error_of([&] { linearize(larger); }).find("score_weight"), std::string::npos);
}

// Maps learned without a cache get one, and nothing else changes.
TEST_F(CacheConversionTest, LearnsACacheAlone) {
  const std::string run = make_run(small_config(kGrouped));
  LinearizeRequest first = cache_request(run, "first");
  for (const char* name : {"cache", "chunk", "score"}) first.plan.conversion.mixer.erase(name);
  EXPECT_FALSE(linearize(first).cache);
  LinearizeRequest second = cache_request(run, "second");
  second.plan.from = path("first/learned.safetensors");
  second.plan.transfer.tokens = 0;
  const auto result = linearize(second);
  ASSERT_TRUE(result.done && result.cache && result.stages.empty());
  const auto before = open_model(path("first")), after = open_model(path("second"));
  for (const auto& entry : before->named_parameters()) {
    const Tensor kept = after->named_parameters()[entry.key()];  // learned.safetensors holds learned weights as float16
    EXPECT_TRUE(kept.equal(entry.value()) || kept.equal(entry.value().to(at::kHalf).to(at::kFloat))) << entry.key();
  }
  EXPECT_EQ(after->named_parameters().size(), before->named_parameters().size() + 3 * 2);
}

// A sink is built from what all first tokens share: here a learned position, the first of which is unlike any other.
class SinksOfAModel : public CacheConversionTest, public ::testing::WithParamInterface<bool> {};

TEST_P(SinksOfAModel, AreSettled) {
  Json source = small_config(kGrouped), mixer = settings();
  source["positions"] = "learned";
  source["context"] = 96;
  for (const char* name : {"cache", "chunk", "score"}) {
    if (!GetParam()) mixer.erase(name);
  }
  const auto model = convert(make_run(source), mixer);
  const auto text = chunks(96);
  const at::NoGradGuard no_grad;
  auto parameters = model->named_parameters();
  Tensor first = parameters["positions.weight"][0];
  first.zero_();
  first[3] = 50;
  const auto logit = [&] {  // of a text's first token, in the second latent of the first layer
    const Tensor x = forced_inputs(*model, text->batch(77, 1).tokens)[0];
    const Mixer& mixer = *model->mixers()[0];
    return at::matmul(student_of(mixer)->latent_inputs(x)[0][0], latent_keys(mixer)[1]).item<double>();
  };
  latent_keys(*model->mixers()[0])[1][3] *= 9 / logit();
  const Tensor before = latent_keys(*model->mixers()[0]).clone(), other = latent_keys(*model->mixers()[1]).clone();
  EXPECT_FALSE(settle_sinks(*model, *text, {.tokens = 10 * 96, .stop = [] { return true; }}, {}));
  EXPECT_EQ(settle_sinks(*model, *text, {.tokens = 10 * 96}, {}), 1);
  const Tensor after = latent_keys(*model->mixers()[0]);
  EXPECT_FALSE(after[1].equal(before[1]));
  EXPECT_TRUE(after[0].equal(before[0]));
  EXPECT_TRUE(latent_keys(*model->mixers()[1]).equal(other));
  EXPECT_NEAR(logit(), 20, 2);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutACache, SinksOfAModel, ::testing::Bool());

TEST_F(CacheConversionTest, SaysThatNothingLeavesTheWindow) {
  LinearizeRequest wanted = cache_request(make_run(small_config(kGrouped)), "out");
  wanted.plan.context = 9;
  EXPECT_EQ(
      testing::error_of([&] { linearize(wanted); }),
      "[--context] sequences of 9 tokens are too short for a cache to learn from: hardly a pair leaves the window");
}

}  // namespace
}  // namespace cortado
