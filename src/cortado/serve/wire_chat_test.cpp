#include <gtest/gtest.h>

#include "cortado/serve/wire.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/serving.h"

namespace cortado {
namespace {

using testing::chatty_engine;

Json chat_json(const std::string& text) { return parse_json(text, "test"); }

const std::string kAsks = R"("messages": [{"role": "user", "content": "a"}])";

TEST(WireChat, AConversationOfAModelThatWasNotTaughtToIsOneText) {
  const auto engine = testing::untaught_engine();
  const Call call = read_chat(
      chat_json(R"({"messages": [{"role": "system", "content": "Verona."}, {"role": "user", "content": "ROMEO:"},
                              {"role": "assistant", "content": " Hark!"}, {"role": "user", "content": "JULIET:"}]})"),
      *engine, {});
  const auto& request = call.requests.at(0);
  EXPECT_EQ(engine->models()[0].tokenizer->decode(request.tokens), "Verona.\nROMEO: Hark!\nJULIET:");
  EXPECT_EQ(request.most_tokens, 200);
  EXPECT_EQ(request.marks, (std::vector<int64_t>{8, 14, 21}));  // where each message begins
  EXPECT_EQ(models_list(*engine).at("data")[0].at("chat"), nullptr);
  EXPECT_EQ(models_list(*chatty_engine()).at("data")[0].at("chat"), "jinja");
}

TEST(WireChat, MessagesOfOtherServersAreRead) {
  const auto engine = chatty_engine();
  const auto prompt = [&](const std::string& messages) {
    const Call call = read_chat(chat_json(R"({"messages": )" + messages + "}"), *engine, {});
    return engine->models()[0].tokenizer->decode(call.requests.at(0).tokens);
  };
  const std::string user = R"({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]})";
  const std::string asked = "<|im_start|>user\na<|im_end|>\n", answer = "<|im_start|>assistant\n";
  for (const char* silent : {R"("content": null)", R"("content": null, "reasoning_content": "x", "tool_calls": [])",
                             R"("refusal": null)", R"("content": "", "cache_control": {"type": "ephemeral"})"}) {
    EXPECT_EQ(prompt("[" + user + R"(, {"role": "assistant", )" + silent + "}, " + user + "]"),
              asked + answer + "<|im_end|>\n" + asked + answer)
        << silent;
  }
  EXPECT_EQ(
      prompt(R"([{"role": "system", "content": "One."}, )" + user + R"(, {"role": "developer", "content": "Two."}])"),
      "<|im_start|>system\nOne.<|im_end|>\n" + asked + "<|im_start|>system\nTwo.<|im_end|>\n" + answer);
  EXPECT_EQ(prompt("[" + user + R"(, {"role": "tool", "content": "t", "tool_call_id": "1", "name": "f"}])"),
            asked + "<|im_start|>tool\nt<|im_end|>\n" + answer);
}

// A model whose chat template shows what it gets.
TEST(WireChat, TemplatesGetWhatTheRequestSays) {
  class Shows : public testing::ChattyBytes {
   public:
    explicit Shows(const std::string& chat_template) { special_.chat.text = chat_template; }
    const SpecialTokens& special() const override { return special_; }

   private:
    SpecialTokens special_;
  };
  const auto model = chatty_engine()->models()[0].model;
  const auto prompt = [&](const std::string& chat_template, const std::string& fields) {
    const Engine engine({{.name = "it", .model = model, .tokenizer = std::make_shared<Shows>(chat_template)}}, {});
    const Call call = read_chat(chat_json("{" + fields + "}"), engine, {});
    return engine.models()[0].tokenizer->decode(call.requests.at(0).tokens);
  };
  const std::string calls =
      R"("messages": [{"role": "assistant", "content": null, "reasoning_content": "Hm", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [1]}"}}]}])";
  EXPECT_EQ(prompt("{{ messages[0].reasoning_content }}{{ messages[0].tool_calls[0].function.arguments.a[0] }}", calls),
            "Hm1");
  EXPECT_EQ(prompt("{{ deep }}{{ documents[0].text }}{{ add_generation_prompt }}",
                   kAsks + R"(, "chat_template_kwargs": {"deep": true}, "documents": [{"text": "d"}])"),
            "TruedTrue");
  const std::string begun = R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}])";
  EXPECT_EQ(prompt(known_chat_template("chatml"), begun + R"(, "continue_final_message": true)"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb ");
  EXPECT_EQ(prompt(known_chat_template("chatml"), begun + R"(, "add_generation_prompt": false)"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb <|im_end|>\n");
  const Engine engine(
      {{.name = "it", .model = model, .tokenizer = std::make_shared<Shows>("{{ raise_exception('users first') }}")}},
      {});
  EXPECT_EQ(testing::refusal_of([&] { read_chat(chat_json("{" + kAsks + "}"), engine, {}); }), "400 messages");
  EXPECT_NE(testing::error_of([&] { read_chat(chat_json("{" + kAsks + "}"), engine, {}); }).find("users first"),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
