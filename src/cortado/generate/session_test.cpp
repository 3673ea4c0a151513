#include "cortado/generate/session.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/generate/generate.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/models/checkpoint.h"
#include "cortado/testing/compare.h"

namespace cortado {
namespace {

using testing::relative_error;

std::shared_ptr<LanguageModel> make_model(const std::string& mixer, const std::string& positions = "rotary",
                                          int64_t context = 64) {
  Json settings = parse_json(mixer, "test");
  Json json = {{"vocabulary", 256},
               {"dim", 24},
               {"heads", 4},
               {"layers", 2},
               {"mixer", settings},
               {"norm", "rms"},
               {"positions", positions},
               {"context", context},
               {"initialization", {{"type", "normal"}, {"std", 0.3}}},
               {"feed_forward", {{"type", "mlp"}, {"dim", 32}}}};
  at::manual_seed(5);
  return std::make_shared<LanguageModel>(ModelConfig::from_json(json, "test"));
}

std::shared_ptr<Tokenizer> bytes() {
  static const auto tokenizer = make_tokenizer("byte", {});
  return tokenizer;
}

const std::string kText = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n";

// Every mechanism that can decode, with each of its example settings.
std::vector<std::string> causal_mixers() {
  std::vector<std::string> found;
  for (const auto* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    for (const auto& example : mechanism->examples) {
      Json settings = parse_json(example, mechanism->name);
      Json mixer = {{"mixer", mechanism->name}};
      mixer.update(settings);
      found.push_back(mixer.dump());
    }
  }
  return found;
}

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, AnyCutGivesTheSameLogits) {
  const auto model = make_model(GetParam());
  Session whole(model, bytes());
  const auto tokens = bytes()->encode(kText);
  whole.prefill(tokens, 1 << 20);
  for (const int64_t chunk : {1, 7, 32}) {
    Session cut(model, bytes());
    cut.prefill(tokens, chunk);
    EXPECT_LT(relative_error(cut.logits(), whole.logits()), 2e-4) << "chunks of " << chunk;
    EXPECT_EQ(cut.depth(), whole.depth());
  }
  const auto direct = model->forward(at::tensor(tokens, at::kLong).unsqueeze(0))[0][-1];
  EXPECT_LT(relative_error(whole.logits(), direct.detach()), 2e-4);
}

TEST_P(EveryMixer, ForkedSavedAndLoadedGoOnAlike) {
  const TemporaryDirectory folder;
  const auto model = make_model(GetParam());
  const auto write = [](Session& session, int64_t count) {
    std::string text;
    generate(session, {.sampling = {.seed = 3}, .tokens = count}, [&](std::string_view part) { text += part; });
    return std::vector<int32_t>(session.recent().begin(), session.recent().end());
  };
  Session session(model, bytes());
  session.prefill_text(kText);
  Session whole = session.fork();
  const auto expected = write(whole, 30);

  write(session, 12);
  session.save(folder.path() + "/state");
  Session fork = session.fork();
  write(session, 18);
  write(fork, 18);  // its state is its own: the other's steps have not moved it
  Session loaded(model, bytes());
  loaded.load(folder.path() + "/state");
  write(loaded, 18);
  for (const Session* other : std::vector<const Session*>{&session, &fork, &loaded}) {
    EXPECT_EQ(std::vector<int32_t>(other->recent().begin(), other->recent().end()), expected);
    EXPECT_TRUE(at::equal(other->logits(), whole.logits()));
    EXPECT_EQ(other->depth(), whole.depth());
    EXPECT_EQ(other->state_bytes(), whole.state_bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(Session, EveryMixer, ::testing::ValuesIn(causal_mixers()), [](const auto& info) {
  std::string name =
      std::to_string(info.index) + "_" + parse_json(info.param, "test")["mixer"].template get<std::string>();
  return name;
});

TEST(Session, RefusesTheStateOfAnotherModel) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/state";
  Session session(make_model(R"({"mixer": "linear"})"), bytes());
  session.prefill_text("Hear me.");
  session.save(path);
  Session other(make_model(R"({"mixer": "softmax"})"), bytes());
  EXPECT_THROW(other.load(path), InputError);
  EXPECT_THROW(other.load(folder.path() + "/missing"), InputError);
  write_file(path, read_file(path).substr(0, 200));
  EXPECT_THROW(session.load(path), InputError);
}

TEST(Session, RefusesTheStateOfAnotherType) {
  const TemporaryDirectory folder;
  const auto model = make_model(R"({"mixer": "softmax"})");
  Session session(model, bytes());
  session.prefill_text("Hear me.");
  session.save(folder.path() + "/state");
  model->to(at::kBFloat16);
  Session other(model, bytes());
  EXPECT_THROW(other.load(folder.path() + "/state"), InputError);
}

TEST(Session, NothingReadNothingToGoOnFrom) {
  Session session(make_model(R"({"mixer": "linear"})"), bytes());
  EXPECT_THROW(session.logits(), InputError);
  EXPECT_THROW(session.save("/tmp/never-written"), InputError);
  session.prefill({});
  EXPECT_EQ(session.depth(), 0);
}

TEST(Session, LearnedPositionsEndTheSequence) {
  Session session(make_model(R"({"mixer": "softmax"})", "learned", 16), bytes());
  session.prefill(std::vector<int32_t>(16, 65));
  EXPECT_THROW(session.step(66), InputError);
}

TEST(Session, RemembersRecentTokensWithoutGrowing) {
  Session session(make_model(R"({"mixer": "linear"})"), bytes());
  std::vector<int32_t> tokens(3 * Session::kRecentTokens, 65);
  tokens.back() = 66;
  session.prefill(tokens);
  EXPECT_GE(session.recent().size(), Session::kRecentTokens);
  EXPECT_LT(session.recent().size(), 2 * Session::kRecentTokens);
  EXPECT_EQ(session.recent().back(), 66);
}

}  // namespace
}  // namespace cortado
