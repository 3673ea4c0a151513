#include "cortado/generate/defaults.h"

#include <gtest/gtest.h>

#include "cortado/base/files.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

class Talker : public Tokenizer {
 public:
  explicit Talker(const std::string& chat_template) { special_.chat.text = chat_template; }
  std::string kind() const override { return "talker"; }
  int64_t vocabulary() const override { return 1; }
  std::vector<int32_t> encode(std::string_view /*text*/) const override { return {}; }
  std::string decode(const std::vector<int32_t>& /*tokens*/) const override { return ""; }
  const SpecialTokens& special() const override { return special_; }
  void save(const std::string& /*directory*/) const override {}

 private:
  SpecialTokens special_;
};

TEST(Defaults, WhereARunSaysNothing) {
  const TemporaryDirectory run;
  const Talker taught("{{ messages[0].content }}"), untaught("");
  EXPECT_TRUE(default_sampling(run.path(), &untaught).empty());
  EXPECT_TRUE(default_sampling(run.path(), nullptr).empty());
  const Json llama = {
      {"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.95}, {"min_p", 0.05}, {"repetition_penalty", 1.0}};
  EXPECT_EQ(sampling_json(default_sampling(run.path(), &taught).over({})), llama);
  // Fields that are not about sampling do not count as settings.
  write_file(run.path() + "/generation_config.json", R"({"eos_token_id": 2, "temperature": null, "_from": "x"})");
  EXPECT_EQ(sampling_json(default_sampling(run.path(), &taught).over({})), llama);
}

TEST(Defaults, AreTheRunsOwn) {
  const TemporaryDirectory run;
  const Talker taught("chatml");
  write_file(run.path() + "/generation_config.json",
             R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]})");
  const SamplingOptions own = default_sampling(run.path(), &taught).over({.repetition_window = 7});
  EXPECT_EQ(sampling_json(own),
            (Json{{"temperature", 0.6}, {"top_k", 0}, {"top_p", 0.9}, {"min_p", 0.0}, {"repetition_penalty", 1.0}}));
  EXPECT_EQ(own.repetition_window, 7);
  EXPECT_EQ(SamplingChoice{.temperature = 0.0}.over(own).top_p, 0.9);
}

TEST(Defaults, AreWrittenBesideWhatIsThere) {
  const TemporaryDirectory run;
  const std::string path = run.path() + "/generation_config.json";
  write_generation_config({}, run.path());
  EXPECT_THROW(read_file(path), InputError);
  write_file(path, R"({"eos_token_id": 2, "top_k": 20})");
  write_generation_config({.temperature = 0.2, .top_p = 0.9}, run.path());
  EXPECT_EQ(parse_json(read_file(path), path),
            (Json{{"eos_token_id", 2}, {"top_k", 20}, {"do_sample", true}, {"temperature", 0.2}, {"top_p", 0.9}}));
}

TEST(Defaults, RefuseWhatCannotBe) {
  const TemporaryDirectory run;
  const auto said = [&](const char* text) {
    write_file(run.path() + "/generation_config.json", text);
    return testing::error_of([&] { default_sampling(run.path(), nullptr); });
  };
  EXPECT_NE(said(R"({"temperature": -1})").find("temperature"), std::string::npos);
  EXPECT_NE(said(R"({"top_p": "high"})").find("top_p"), std::string::npos);
  EXPECT_NE(said("[]").find("expected an object"), std::string::npos);
  EXPECT_EQ(said(R"({"top_k": -1, "top_p": 0})"), testing::kNoError);
}

}  // namespace
}  // namespace cortado
