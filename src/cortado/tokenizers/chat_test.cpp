#include "cortado/tokenizers/chat.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

// A tokenizer with only the functions that Chat uses.
class Marks : public Tokenizer {
 public:
  explicit Marks(const std::string& style, const std::string& system = "") {
    special_.begin = 0;
    special_.end = 1;
    special_.chat = {style, system};
  }
  void problem(const std::string& text) { special_.chat.problem = text; }
  std::string kind() const override { return "marks"; }
  int64_t vocabulary() const override { return 2; }
  std::vector<int32_t> encode(std::string_view /*text*/) const override { return {}; }
  std::string decode(const std::vector<int32_t>& tokens) const override { return tokens[0] == 0 ? "<s>" : "</s>"; }
  const SpecialTokens& special() const override { return special_; }
  void save(const std::string& /*directory*/) const override {}

 private:
  SpecialTokens special_;
};

const std::vector<ChatMessage> kTalk{{"system", "S"}, {"user", "Q"}, {"assistant", "A"}, {"user", "R"}};

TEST(Chat, Styles) {
  const auto text = [](const char* style) { return Chat(Marks(style)).render(kTalk, true); };
  EXPECT_EQ(text("chatml"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
            "<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text("llama2"), "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s><s>[INST] R [/INST]");
  EXPECT_EQ(text("mistral"), "<s> [INST] S\n\nQ [/INST] A</s> [INST] R [/INST]");
  EXPECT_EQ(text("mistral-v1"), "<s>[INST] S\n\nQ [/INST]A</s>[INST] R [/INST]");
  EXPECT_EQ(text("mistral-v3"), "<s>[INST] S\n\nQ[/INST] A</s>[INST] R[/INST]");
  const std::string head = "<|start_header_id|>", end = "<|end_header_id|>\n\n";
  EXPECT_EQ(text("llama3"), "<s>" + head + "system" + end + "S<|eot_id|>" + head + "user" + end + "Q<|eot_id|>" + head +
                                "assistant" + end + "A<|eot_id|>" + head + "user" + end + "R<|eot_id|>" + head +
                                "assistant" + end);
  EXPECT_EQ(text("gemma"),
            "<s><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\n"
            "R<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(text("rwkv-world"), "<s>System: S\n\nUser: Q\n\nAssistant: A\n\nUser: R\n\nAssistant:");
}

TEST(Chat, DefaultSystemMessages) {
  const Chat chat(Marks("chatml", "Be brief."));
  EXPECT_EQ(chat.render({{"user", "Q"}}, false),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n");
  EXPECT_EQ(chat.render({{"system", ""}}, false), "<|im_start|>system\n<|im_end|>\n");
  EXPECT_NE(Chat(Marks("llama3.1")).render({{"user", "Q"}}, false).find("Today Date: 26 Jul 2024"), std::string::npos);
  const std::string dated = Chat(Marks("llama3.2")).render({{"user", "Q"}}, false);
  EXPECT_EQ(dated.find('{'), std::string::npos) << dated;
}

// The texts that a session reads question by question add up to the whole conversation.
TEST(Chat, TurnByTurn) {
  for (const char* style : {"chatml", "llama2", "mistral", "mistral-v1", "mistral-v3", "llama3", "llama3.1", "llama3.2",
                            "gemma", "rwkv-world"}) {
    const Chat chat(Marks(style, style == std::string("chatml") ? "default" : ""));
    std::vector<ChatMessage> messages{{"system", "S {bos}"}, {"user", " Q "}};
    std::string read = chat.render(messages, true);
    messages.push_back({"assistant", "A"});
    const std::string all = chat.render(messages, false);
    ASSERT_EQ(all.substr(0, read.size()), read) << style;
    const std::string turn = chat.end_of_turn() + chat.next(messages, {{"user", "R"}});
    messages.push_back({"user", "R"});
    const std::string whole = chat.render(messages, true);
    EXPECT_EQ(whole.substr(whole.size() - turn.size()), turn) << style;
    EXPECT_EQ(whole.find("{eos}"), std::string::npos);
  }
}

// One token per letter, and a space before every text, as in Llama 2's tokenizer.
class Letters : public Marks {
 public:
  Letters() : Marks("") {}
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens = {' '};
    tokens.insert(tokens.end(), text.begin(), text.end());
    return tokens;
  }
  std::string decode(const std::vector<int32_t>& tokens) const override { return {tokens.begin(), tokens.end()}; }
};

TEST(Chat, OfAModelThatWasNotTaughtToIsOneText) {
  const Letters letters;
  const Chat chat = Chat::or_text(letters);
  EXPECT_EQ(chat.render(kTalk, true), "S\nQA\nR");
  EXPECT_EQ(chat.render({{"user", "Q"}, {"user", "R"}}, true), "Q\nR");
  EXPECT_EQ(letters.decode(chat.encode({{"user", "Q"}}, true)), " Q");
  const std::vector<ChatMessage> begun = {{"user", "Q"}, {"assistant", " A"}};
  for (const bool ended : {false, true}) {  // no second space where the text continues
    EXPECT_EQ(letters.decode(chat.encode_next(begun, {{"user", "R"}}, ended)), "\nR");
  }
  EXPECT_EQ(letters.decode(chat.encode_next(begun, {{"system", "S"}, {"user", "R"}}, true)), "\nS\nR");
  const Marks taught("chatml");
  EXPECT_EQ(Chat::or_text(taught).render({{"user", "Q"}}, false), "<|im_start|>user\nQ<|im_end|>\n");
  Marks other("");
  other.problem("its chat template is another");
  EXPECT_NE(testing::error_of([&] { Chat::or_text(other); }).find("template is another"), std::string::npos);
}

bool no_token(std::string_view /*token*/) { return false; }

std::string replaced_in(std::string text, const std::string& what, const std::string& with) {
  return text.replace(text.find(what), what.size(), with);
}

// ChatML as models have it, or slightly changed.
std::string chatml(const std::string& before, const std::string& ask = "<|im_start|>assistant\n",
                   const std::string& separator = "\n") {
  return concat(before, "{% for message in messages %}{{ '<|im_start|>' + message.role + ", Json(separator).dump(),
                " + message.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ ", Json(ask).dump(),
                " }}{% endif %}");
}

TEST(Chat, DetectsStyles) {
  const auto style = [&](const std::string& text) { return detect_chat_style(text, "<s>", "</s>", no_token); };
  for (const char* name : {"chatml", "llama2", "mistral", "mistral-v1", "mistral-v3", "llama3", "llama3.1", "llama3.2",
                           "gemma", "rwkv-world"}) {
    EXPECT_EQ(style(Chat(Marks(name)).jinja()).name, name);
  }
  EXPECT_EQ(style(chatml("")).name, "chatml");
  const ChatStyle qwen =
      style(chatml("{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Q.<|im_end|>\n{% endif %}"));
  EXPECT_EQ(qwen.name + qwen.system, "chatmlYou are Q.");
  const auto has = [](std::string_view token) { return token == "<start_of_turn>"; };
  EXPECT_EQ(detect_chat_style("", "", "", has).name, "gemma");
  EXPECT_EQ(style("rwkv-world").name, "rwkv-world");
}

// A template with a style's marks that writes something else matches no style, and `problem` is one line.
TEST(Chat, LooksAreNotEnough) {
  const std::vector<std::string> others = {
      chatml("{{ bos_token }}"),
      chatml("", "<|im_start|>assistant\n<think>\n"),
      chatml("", "<|im_start|>assistant\n", " "),
      replaced_in(chatml(""), "message.content", "message.content | trim"),
      replaced_in(Chat(Marks("llama3.1")).jinja(), "26 Jul 2024", "27 Jul 2024"),
      "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}[SYSTEM_PROMPT]{{ message.content "
      "}}"
      "[/SYSTEM_PROMPT]{% elif message.role == 'user' %}[INST]{{ message.content }}[/INST]{% else %}{{ message.content "
      "}}"
      "{{ eos_token }}{% endif %}{% endfor %}",
      "### User:",
      "{% for",
      "{{ raise_exception('no') }}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}<|im_start|>"};
  for (const std::string& text : others) {
    const ChatStyle style = detect_chat_style(text, "<s>", "</s>", no_token);
    EXPECT_EQ(style.name, "") << text;
    EXPECT_NE(style.problem, "") << text;
    EXPECT_EQ(style.problem.find('\n'), std::string::npos);
  }
}

TEST(Chat, WithoutAPythonNothingIsTakenForKnown) {
  ::setenv("CORTADO_PYTHON", "/nowhere/python", 1);
  const ChatStyle style = detect_chat_style(chatml(""), "<s>", "</s>", no_token);
  ::unsetenv("CORTADO_PYTHON");
  EXPECT_EQ(style.name, "");
  EXPECT_NE(style.problem.find("CORTADO_PYTHON"), std::string::npos);
}

TEST(Chat, Refusals) {
  EXPECT_NE(testing::error_of([] { Chat(Marks("")); }).find("was not taught to chat"), std::string::npos);
  Marks other("");
  other.problem("its chat template is another");
  EXPECT_NE(testing::error_of([&] { Chat{other}; }).find("template is another"), std::string::npos);
  EXPECT_NE(testing::error_of([] { Chat(Marks("chatml")).render({{"tool", "x"}}, true); }).find("got \"tool\""),
            std::string::npos);
  EXPECT_NE(
      testing::error_of([] { Chat(Marks("chatml")).render({{"user", "x"}, {"system", "y"}}, true); }).find("message 2"),
      std::string::npos);
}

}  // namespace
}  // namespace cortado
