#include "cortado/generate/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/generate/generate.h"
#include "cortado/models/checkpoint.h"
#include "cortado/testing/compare.h"
#include "cortado/testing/models.h"

namespace cortado {
namespace {

using testing::byte_model;
using testing::causal_mixers;
using testing::relative_error;

std::shared_ptr<Tokenizer> bytes() {
  static const auto tokenizer = make_tokenizer("byte", {});
  return tokenizer;
}

const std::string kText = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n";

class EveryMixer : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryMixer, AnyCutGivesTheSameLogits) {
  const auto model = byte_model(GetParam());
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

TEST(Session, PrefillEndsBetweenChunksWhenCancelled) {
  const auto model = byte_model(R"({"mixer": "latte"})");
  const auto tokens = bytes()->encode(kText);
  Session session(model, bytes()), part(model, bytes());
  int asked = 0;
  EXPECT_EQ(session.prefill(tokens, 7, [&] { return ++asked == 2; }), 14);
  EXPECT_EQ(session.depth(), 14);
  EXPECT_EQ(session.recent().size(), 14);
  part.prefill({tokens.begin(), tokens.begin() + 14});
  EXPECT_LT(relative_error(session.logits(), part.logits()), 2e-4);
  EXPECT_EQ(part.prefill(tokens, 7, [] { return true; }), 7);  // the first chunk is always read
}

TEST_P(EveryMixer, ForkedSavedAndLoadedGoOnAlike) {
  const TemporaryDirectory folder;
  const auto model = byte_model(GetParam());
  const auto write = [](Session& session, int64_t count) {
    std::string text;
    generate(session, {.sampling = {.seed = 3}, .tokens = count}, [&](std::string_view part) { text += part; });
    return std::vector<int32_t>(session.recent().begin(), session.recent().end());
  };
  Session session(model, bytes());
  session.prefill(bytes()->encode(kText));
  Session whole = session.fork();
  const auto expected = write(whole, 30);

  write(session, 12);
  session.save(folder.path() + "/state");
  Session fork = session.fork();
  write(session, 18);
  write(fork, 18);  // steps of the original do not change the fork's state
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
  Session session(byte_model(R"({"mixer": "linear"})"), bytes());
  session.prefill(bytes()->encode("Hear me."));
  session.save(path);
  Session other(byte_model(R"({"mixer": "softmax"})"), bytes());
  EXPECT_THROW(other.load(path), InputError);
  EXPECT_THROW(other.load(folder.path() + "/missing"), InputError);
  write_file(path, read_file(path).substr(0, 200));
  EXPECT_THROW(session.load(path), InputError);
}

TEST(Session, RefusesTheStateOfAnotherType) {
  const TemporaryDirectory folder;
  const auto model = byte_model(R"({"mixer": "softmax"})");
  Session session(model, bytes());
  session.prefill(bytes()->encode("Hear me."));
  session.save(folder.path() + "/state");
  model->to(at::kBFloat16);
  Session other(model, bytes());
  EXPECT_THROW(other.load(folder.path() + "/state"), InputError);
}

TEST(Session, NothingReadNothingToGoOnFrom) {
  Session session(byte_model(R"({"mixer": "linear"})"), bytes());
  EXPECT_THROW(session.logits(), InputError);
  EXPECT_THROW(session.save("/tmp/never-written"), InputError);
  session.prefill({});
  EXPECT_EQ(session.depth(), 0);
}

TEST(Session, LearnedPositionsEndTheSequence) {
  Session session(byte_model(R"({"mixer": "softmax"})", "learned", 16), bytes());
  session.prefill(std::vector<int32_t>(16, 65));
  EXPECT_THROW(session.step(66), InputError);
}

TEST(Session, RemembersRecentTokensWithoutGrowing) {
  Session session(byte_model(R"({"mixer": "linear"})"), bytes());
  std::vector<int32_t> tokens(3 * Session::kRecentTokens, 65);
  tokens.back() = 66;
  session.prefill(tokens);
  EXPECT_GE(session.recent().size(), Session::kRecentTokens);
  EXPECT_LT(session.recent().size(), 2 * Session::kRecentTokens);
  EXPECT_EQ(session.recent().back(), 66);
}

}  // namespace
}  // namespace cortado
