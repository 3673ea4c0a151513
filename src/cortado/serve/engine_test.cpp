#include "cortado/serve/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/generate/generate.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/models.h"

namespace cortado {
namespace {

using namespace std::chrono_literals;
using testing::byte_model;
using testing::causal_mixers;
using testing::wide_model;

std::shared_ptr<Tokenizer> bytes() {
  static const auto tokenizer = make_tokenizer("byte", {});
  return tokenizer;
}

std::unique_ptr<Engine> engine_of(const std::shared_ptr<LanguageModel>& model,
                                  EngineOptions options = {.piece = kPiece}) {
  return std::make_unique<Engine>(std::vector<ServedModel>{{.name = "it", .model = model, .tokenizer = bytes()}},
                                  options);
}

Request request(const std::string& prompt, int64_t tokens = 12, double temperature = 0.8) {
  Request made;
  made.tokens = bytes()->encode(prompt);
  made.most_tokens = tokens;
  made.sampling.temperature = temperature;
  made.sampling.seed = static_cast<int64_t>(prompt.size());
  made.likeliest = 2;
  return made;
}

struct Whole {
  std::vector<std::string> texts;
  std::vector<double> logprobs;
  std::vector<std::optional<Finish>> ends;
};

Whole wait_for(Answer& answer) {
  Whole whole;
  const auto choices = static_cast<size_t>(answer.request().choices);
  whole.texts.resize(choices);
  whole.ends.resize(choices);
  AnswerPart part;
  while (true) {
    const auto got = answer.next(part, 20s);
    if (got != Answer::Got::kPart) {
      EXPECT_EQ(got, Answer::Got::kEnd);
      return whole;
    }
    const auto at = static_cast<size_t>(part.choice);
    whole.texts[at] += part.text;
    for (const auto& score : part.scores) whole.logprobs.push_back(*score.logprob);
    if (part.finish) whole.ends[at] = part.finish;
  }
}

Whole ask(Engine& engine, Request request) { return wait_for(*engine.ask(std::move(request))); }

std::string generated(const std::shared_ptr<LanguageModel>& model, const Request& request) {
  Session session(model, bytes());
  session.prefill(request.tokens, kPiece);
  std::string text;
  generate(session, {.sampling = request.sampling, .text = {.stops = request.stops}, .tokens = request.most_tokens},
           [&](std::string_view part) { text += part; });
  return text;
}

const std::string kText =
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\nYou are "
    "all resolved rather to die than to famish?\n";

// Whether a row's bits are independent of the rows beside it. Exceptions differ in the last bits at first. Their causes
// are sizes that are not multiples of 16 (see above), including one gate per head, and torch's matrix products over all
// rows at once.
bool exact(const std::string& mixer) {
  static const std::set<std::string> kNot = {
      "performer", "exact_chunked", "s5",  "luna",  "gated_delta_net", "gated_delta_product", "mamba3",
      "kda",       "delta_net",     "mla", "rwkv7", "mamba2",          "parallel_hybrid"};
  const Json settings = parse_json(mixer, "test");
  const std::string name = settings.at("mixer");
  Json first = {{"mixer", name}};
  first.update(parse_json(testing::examples_of(find_mechanism(name)).examples[0], "test"));
  return first == settings && !kNot.contains(name);
}

void expect_same(const Whole& whole, const Whole& expected, bool exact) {
  if (exact) {
    EXPECT_EQ(whole.texts, expected.texts);
    EXPECT_EQ(whole.logprobs, expected.logprobs);
  }
  // Random models are chaotic: a difference in the last bit may lead to another token later.
  for (const size_t i : {0, 1}) ASSERT_NEAR(whole.logprobs[i], expected.logprobs[i], 1e-4);
}

class EveryMixerServes : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixerServes, WritesWhatASessionWrites) {
  const auto model = wide_model(GetParam());
  const auto engine = engine_of(model);
  const auto asked = request(kText, 20, 0);
  const auto whole = ask(*engine, asked);
  EXPECT_EQ(whole.texts[0], generated(model, asked));
  EXPECT_EQ(whole.ends[0], Finish::kLength);
}

// Gives equal bits alone and among seven others, also when prompts are read a few layers at a time.
TEST_P(EveryMixerServes, AnAnswerDoesNotDependOnTheOthers) {
  const auto model = wide_model(GetParam());
  std::vector<Request> all;
  for (size_t i = 0; i < 8; ++i)
    all.push_back(request(kText.substr(i * 7, 20 + 15 * i), 8 + 3 * static_cast<int64_t>(i)));
  std::vector<Whole> alone;
  for (const auto& one : all) alone.push_back(ask(*engine_of(model), one));
  const auto engine = engine_of(model, {.piece = kPiece, .prefill_tokens = 20});
  std::vector<std::shared_ptr<Answer>> answers;
  for (const auto& one : all) answers.push_back(engine->ask(one));
  for (size_t i = 0; i < all.size(); ++i) {
    expect_same(wait_for(*answers[i]), alone[i], exact(GetParam()));
  }
}

// Generates forty answers at once and an eighth of them again alone, and expects equal bits.
void expect_forty_apart(const std::shared_ptr<LanguageModel>& model) {
  std::vector<Request> all;
  for (size_t i = 0; i < 40; ++i) {
    all.push_back(request(kText.substr(i, 12 + i % 23), 6 + static_cast<int64_t>(i) % 4));
  }
  const auto engine =
      engine_of(model, {.rows = 40, .piece = kPiece, .prefill_tokens = int64_t{1} << 20, .cache_bytes = 0});
  std::vector<std::shared_ptr<Answer>> answers;
  for (const auto& one : all) answers.push_back(engine->ask(one));
  std::vector<Whole> together;
  for (const auto& answer : answers) together.push_back(wait_for(*answer));
  for (size_t i = 3; i < all.size(); i += 8) {
    SCOPED_TRACE(concat("answer ", i));
    expect_same(together[i], ask(*engine, all[i]), true);
  }
}

constexpr WeightFormat kServedFormats[] = {WeightFormat::kPlain, WeightFormat::kInt8};

TEST_P(EveryMixerServes, FortyAnswersAreWhatEachIsAlone) {
  if (!exact(GetParam())) GTEST_SKIP() << "not the same bits: docs/serving.md";
  for (const auto format : kServedFormats) {
    SCOPED_TRACE(weight_format_name(format));
    const auto model = wide_model(GetParam());
    model->set_weight_format(format);
    expect_forty_apart(model);
  }
}

// Realistic sizes: configurations of configs/, and a layer of SmolLM2-135M with Macchiato instead of softmax.
TEST(Engine, FortyAnswersOfShippedModelsAreWhatEachIsAlone) {
  const char* source = std::getenv("CORTADO_SOURCE");
  const auto folder = std::filesystem::path(source ? source : ".") / "configs";
  std::vector<Json> configs;
  for (const char* name : {"macchiato-demo", "nanogpt-cpu", "hgrn2"}) {
    configs.push_back(read_json_file(folder / concat(name, ".json")));
    configs.back().erase("training");
  }
  configs.push_back(parse_json(R"({"dim": 576, "heads": 9, "layers": 1, "feed_forward": {"type": "swiglu", "dim": 1536},
      "mixer": {"mixer": "macchiato", "kv_heads": 3, "window": 64, "source": "conv", "window_logit": 20}})",
                               "test"));
  for (Json& config : configs) {
    config["vocabulary"] = 256;
    config["initialization"] = {{"type", "normal"}, {"std", 0.1}};
    for (const auto format : kServedFormats) {
      SCOPED_TRACE(concat(config.value("name", "SmolLM2"), " ", weight_format_name(format)));
      at::manual_seed(7);
      const auto model = std::make_shared<LanguageModel>(ModelConfig::from_json(config, "config"));
      model->set_weight_format(format);
      expect_forty_apart(model);
    }
  }
}

// Continuing from a snapshot equals reading.
TEST_P(EveryMixerServes, ASnapshotGoesOnWithTheSameBits) {
  const auto model = wide_model(GetParam());
  const auto engine = engine_of(model), bare = engine_of(model, {.piece = kPiece, .cache_bytes = 0});
  const auto first = request(kText);
  const auto once = ask(*engine, first);
  const auto answer = engine->ask(first);
  const auto again = wait_for(*answer);
  EXPECT_EQ(answer->cached_tokens(), static_cast<int64_t>(first.tokens.size()));
  EXPECT_EQ(again.texts, once.texts);
  EXPECT_EQ(again.logprobs, once.logprobs);
  // The second prompt diverges from the first at 100; the third finds a snapshot at 64.
  for (const char* end : {"one", "another"}) {
    const auto other = request(kText.substr(0, 100) + end);
    const auto reading = ask(*bare, other);
    const auto kept = engine->ask(other);
    const auto going_on = wait_for(*kept);
    EXPECT_EQ(kept->cached_tokens(), end == std::string("one") ? 0 : 64);
    EXPECT_EQ(going_on.texts, reading.texts);
    EXPECT_EQ(going_on.logprobs, reading.logprobs);
  }
  EXPECT_EQ(bare->load().snapshots, 0);
}

// A snapshot holds little more memory than it is counted with: it must not keep the keys of a whole prompt alive for
// those of a window.
TEST_P(EveryMixerServes, SnapshotsAreAsLargeAsTheyAreCounted) {
  const auto model = wide_model(GetParam());
  auto asked = request(kText, 3);
  asked.wants_state = true;
  const auto engine = engine_of(model, {.piece = 4 * kPiece});
  const auto alone = engine->ask(asked);
  wait_for(*alone);
  for (const auto& layer : alone->written(0).snapshot->state.layers) {
    for (const auto& [name, tensor] : layer.tensors()) {
      EXPECT_LE(tensor.storage().nbytes() / 4 * 3, tensor.nbytes()) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryMixerServes, ::testing::ValuesIn(causal_mixers()));

std::shared_ptr<LanguageModel> latte() { return wide_model(R"({"mixer": "latte"})"); }

TEST(Engine, SeveralChoicesReadThePromptOnce) {
  const auto engine = engine_of(latte());
  auto asked = request(kText);
  asked.choices = 3;
  const auto together = ask(*engine, asked);
  const auto read = engine->metrics().text({});
  EXPECT_NE(read.find("cortado_read_tokens_total " + std::to_string(asked.tokens.size())), std::string::npos) << read;
  asked.choices = 1;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ask(*engine, asked).texts[0], together.texts[i]);
    ++asked.sampling.seed;
  }
}

TEST(Engine, StopsAtATextAndAtALength) {
  const auto model = latte();
  const auto engine = engine_of(model);
  auto asked = request(kText, 30);
  const std::string all = ask(*engine, asked).texts[0];
  asked.stops = {all.substr(10, 3)};
  const auto cut = ask(*engine, asked);
  EXPECT_EQ(cut.texts[0], all.substr(0, all.find(asked.stops[0])));
  EXPECT_EQ(cut.ends[0], Finish::kStop);
  asked.most_tokens = 0;
  const auto none = ask(*engine, asked);
  EXPECT_EQ(none.texts[0], "");
  EXPECT_EQ(none.ends[0], Finish::kLength);
}

TEST(Engine, ScoresOfAPromptAreTheModels) {
  const auto model = latte();
  const auto engine = engine_of(model);
  auto asked = request(kText, 1, 0);
  asked.score_prompt = true;
  ask(*engine, asked);  // a prompt in the cache must make no difference
  const auto answer = engine->ask(asked);
  wait_for(*answer);
  const auto tokens = at::tensor(asked.tokens, at::kLong);
  const auto expected = at::log_softmax(model->forward(tokens.unsqueeze(0))[0], -1);
  const auto& scores = answer->prompt_scores();
  ASSERT_EQ(scores.size(), asked.tokens.size());
  EXPECT_FALSE(scores[0].logprob.has_value());
  for (size_t i = 1; i < scores.size(); ++i) {
    const auto before = expected[static_cast<int64_t>(i) - 1];
    EXPECT_NEAR(*scores[i].logprob, before[asked.tokens[i]].item<double>(), 1e-4);
    ASSERT_EQ(scores[i].likeliest.size(), 2u);
    EXPECT_NEAR(scores[i].likeliest[0].second, before.max().item<double>(), 1e-4);
  }
}

TEST(Engine, AnAnswerThatNobodyWaitsForLeavesItsRow) {
  const auto engine = engine_of(latte(), {.rows = 1});
  const auto endless = engine->ask(request(kText, 1000000));
  AnswerPart part;
  EXPECT_EQ(endless->next(part, 20s), Answer::Got::kPart);
  const auto behind = engine->ask(request(kText, 2));
  endless->cancel();
  EXPECT_EQ(wait_for(*endless).ends[0], Finish::kCancelled);
  EXPECT_EQ(wait_for(*behind).ends[0], Finish::kLength);
  auto late = request(kText, 1000000);
  late.seconds = 0.05;
  EXPECT_EQ(ask(*engine, late).ends[0], Finish::kTimeout);
}

TEST(Engine, RefusesMoreThanCanWait) {
  const auto engine = engine_of(latte(), {.rows = 1, .waiting = 1});
  std::vector<std::shared_ptr<Answer>> asked;
  const auto ask_more = [&] {
    for (int i = 0; i < 4; ++i) asked.push_back(engine->ask(request(kText, 1000000)));
  };
  EXPECT_THROW(ask_more(), Busy);
  for (const auto& answer : asked) answer->cancel();
  for (const auto& answer : asked) EXPECT_EQ(wait_for(*answer).ends[0], Finish::kCancelled);
}

TEST(Engine, DrainEndsWhatGoesOn) {
  const auto engine = engine_of(latte());
  const auto short_one = engine->ask(request(kText, 5));
  EXPECT_TRUE(engine->drain(20));
  EXPECT_EQ(wait_for(*short_one).ends[0], Finish::kLength);
  EXPECT_THROW(engine->ask(request(kText)), Busy);
  const auto other = engine_of(latte());
  const auto endless = other->ask(request(kText, 100000000));
  EXPECT_FALSE(other->drain(0.05));
}

TEST(Engine, SaysWhatAModelCannotBeAsked) {
  const auto engine = engine_of(byte_model(R"({"mixer": "latte"})", "learned", 64));
  const auto refused = [&](const auto& change) {
    auto asked = request("abc");
    change(asked);
    return testing::error_of([&] { engine->ask(asked); });
  };
  EXPECT_NE(refused([](Request& r) { r.tokens.clear(); }).find("no tokens"), std::string::npos);
  EXPECT_NE(refused([](Request& r) { r.tokens[1] = 256; }).find("token 256"), std::string::npos);
  EXPECT_NE(refused([](Request& r) { r.choices = 17; }).find("not 17"), std::string::npos);
  EXPECT_NE(refused([](Request& r) { r.most_tokens = 62; }).find("positions for 64"), std::string::npos);
  EXPECT_NE(refused([](Request& r) { r.sampling.top_p = 2; }).find("top-p"), std::string::npos);
  EXPECT_NE(refused([](Request& r) { r.sampling.bias = {{300, 1.0}}; }).find("token 300"), std::string::npos);
  EXPECT_NE(refused([](Request& r) { r.stops = {""}; }).find("stop string"), std::string::npos);
}

// Models round their vocabulary up, so some tokens have no text.
TEST(Engine, ATokenWithoutATextHarmsNobody) {
  const auto model = wide_model(R"({"mixer": "latte"})", 320);
  const auto expected = ask(*engine_of(model), request(kText, 60));
  const auto engine = engine_of(model);
  const auto beside = engine->ask(request(kText, 60));
  auto odd = request("ab", 4);
  odd.tokens.push_back(300);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(*engine, odd).ends[0], Finish::kLength);
  EXPECT_EQ(wait_for(*beside).texts, expected.texts);
}

TEST(Engine, WhatFailsForOneFailsForHimAlone) {
  const auto model = latte();
  const auto expected = ask(*engine_of(model), request(kText, 60));
  const auto engine = engine_of(model);
  const auto beside = engine->ask(request(kText, 60));
  auto bad = request("abc", 4);
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->state = model->zero_state(1);
  snapshot->logits = at::full({256}, std::numeric_limits<float>::quiet_NaN());
  bad.start = {snapshot, 3};
  EXPECT_THROW(ask(*engine, bad), Failure);
  EXPECT_EQ(wait_for(*beside).texts, expected.texts);
}

TEST(Engine, AModelWithoutAStateIsAnError) {
  Json config = latte()->config().to_json();
  config["causal"] = false;
  const auto both = std::make_shared<LanguageModel>(ModelConfig::from_json(config, "test"));
  const auto engine = engine_of(both);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(ask(*engine, request("abc")), InputError);
}

TEST(Engine, AModelThatFailsSaysSoAndServesOn) {
  const auto model = latte();
  const auto engine = engine_of(model);
  const auto damaged = byte_model(R"({"mixer": "latte"})");
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : damaged->parameters()) parameter.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  Engine both(
      {{.name = "good", .model = model, .tokenizer = bytes()}, {.name = "bad", .model = damaged, .tokenizer = bytes()}},
      {});
  auto asked = request(kText);
  const auto expected = ask(*engine, asked).texts;
  asked.model = 1;
  EXPECT_THROW(ask(both, asked), Failure);
  asked.model = 0;
  EXPECT_EQ(ask(both, asked).texts, expected);
}

}  // namespace
}  // namespace cortado
