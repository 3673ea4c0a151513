#include "cortado/tokenizers/chat.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

// One token per letter. <s> is 0 and </s> is 1; they end no answer unless `stops` says so.
class Marks : public Tokenizer {
 public:
  explicit Marks(const std::string& chat_template, std::vector<int32_t> stops = {}) {
    special_.begin = 0;
    special_.end = 1;
    special_.stops = std::move(stops);
    special_.chat.text = chat_template;
  }
  void name(const std::string& name, const std::string& text) { special_.chat.named.emplace_back(name, text); }
  std::string kind() const override { return "marks"; }
  int64_t vocabulary() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      text += token == 0 ? "<s>" : token == 1 ? "</s>" : std::string(1, static_cast<char>(token));
    }
    return text;
  }
  const SpecialTokens& special() const override { return special_; }
  void save(const std::string& /*directory*/) const override {}

 private:
  SpecialTokens special_;
};

Json talk(const std::vector<std::pair<const char*, const char*>>& messages) {
  Json list = Json::array();
  for (const auto& [role, content] : messages) list.push_back(chat_message(role, content));
  return list;
}

const Json kTalk = talk({{"system", "S"}, {"user", "Q"}, {"assistant", "A"}, {"user", "R"}});

std::string rendered(const std::string& chat_template, const Json& messages, const ChatOptions& options = {}) {
  const Marks marks(chat_template);
  return Chat(marks).render(messages, options).bytes();
}

// Templates that have no place for a second system message, for any, and for the word "developer".
TEST(Chat, MessagesAreFitted) {
  const std::string roles = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
  const std::string one =
      "{% for m in messages[1:] if m.role == 'system' %}{{ raise_exception('one only') }}{% endfor %}" + roles;
  const std::string none =
      "{% for m in messages if m.role == 'system' %}{{ raise_exception('none') }}{% endfor %}" + roles;
  const Json two = talk({{"developer", "S"}, {"user", "Q"}, {"system", "T"}, {"assistant", "A"}});
  const auto fitted = [&](const std::string& text, const Json& messages) {
    return rendered(text, messages, {.fits = true});
  };
  EXPECT_EQ(fitted(roles, two), "[system:S][user:Q][system:T][assistant:A]");
  EXPECT_EQ(fitted("{# developer #}" + roles, two), "[developer:S][user:Q][system:T][assistant:A]");
  EXPECT_EQ(fitted(one, two), "[system:S\n\nT][user:Q][assistant:A]");
  EXPECT_EQ(fitted(none, two), "[user:S\n\nT\n\nQ][assistant:A]");
  const Json parts = {{{"role", "system"}, {"content", "S"}},
                      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Q"}}}}}};
  EXPECT_EQ(fitted("{{ messages[0].content[1].text }}" + none.substr(0, none.find("{% endfor %}") + 12), parts), "Q");
  // Nothing is fitted unless it is asked for, and a template that always refuses says why in its own words.
  EXPECT_NE(testing::error_of([&] { rendered(one, two); }).find("one only"), std::string::npos);
  EXPECT_NE(testing::error_of([&] { fitted("{{ raise_exception('never') }}", two); }).find("never"), std::string::npos);
  // What was typed keeps its message's number.
  const Marks marks(none);
  const jinja::Text text = Chat(marks).render(two, {.fits = true});
  EXPECT_EQ(text.typed().back().source, 3);
  EXPECT_EQ(text.typed()[text.typed().size() - 2].source, 1);
}

TEST(Chat, KnownTemplates) {
  const auto text = [](const char* name) { return rendered(known_chat_template(name), kTalk); };
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
  EXPECT_EQ(text("rwkv-world"), "System: S\n\nUser: Q\n\nAssistant: A\n\nUser: R\n\nAssistant:");
  EXPECT_EQ(known_chat_template("klingon"), "");
}

TEST(Chat, KnownSystemMessages) {
  const ChatOptions closed{.ask = false};
  const std::string chatml = known_chat_template("chatml", "Be \"brief\".");
  EXPECT_EQ(rendered(chatml, talk({{"user", "Q"}}), closed),
            "<|im_start|>system\nBe \"brief\".<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n");
  EXPECT_EQ(rendered(chatml, talk({{"system", ""}}), closed), "<|im_start|>system\n<|im_end|>\n");
  EXPECT_NE(rendered(known_chat_template("llama3.1"), talk({{"user", "Q"}})).find("Today Date: 26 Jul 2024\n\n<|eot"),
            std::string::npos);
  const ChatOptions dated{.now = 1700000000};
  EXPECT_NE(rendered(known_chat_template("llama3.2"), kTalk, dated).find(" Nov 2023\n\nS<|eot_id|>"),
            std::string::npos);
  const auto has = [](std::string_view token) { return token == "<start_of_turn>"; };
  EXPECT_EQ(chat_template_by_tokens(has), known_chat_template("gemma"));
  EXPECT_EQ(chat_template_by_tokens([](std::string_view) { return false; }), "");
}

TEST(Chat, WhatATemplateGets) {
  const Json messages = talk({{"user", "Q"}});
  EXPECT_EQ(rendered("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ documents }}|{{ add_generation_prompt }}",
                     messages),
            "<s>|</s>|True|None|True");
  ChatOptions options{.ask = false, .documents = Json::array({"d"}), .more = {{"deep", 3}, {"messages", 0}}};
  EXPECT_EQ(
      rendered("{{ documents[0] }}{{ deep }}{{ messages[0].content }}{{ add_generation_prompt }}", messages, options),
      "d3QFalse");
  Json thinks = messages;
  thinks[0]["reasoning"] = "Hm";
  EXPECT_EQ(rendered("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", thinks), "HmHm");
  Marks marks("plain");
  marks.name("tool_use", "with {{ tools[0] }}");
  const Chat chat(marks);
  EXPECT_EQ(chat.render(messages).bytes(), "plain");
  EXPECT_EQ(chat.render(messages, {.tools = Json::array({"t"})}).bytes(), "with t");
}

TEST(Chat, ContinuesTheLastMessage) {
  const ChatOptions options{.continues = true};
  const Json messages = talk({{"user", "Q"}, {"assistant", "It is "}});
  EXPECT_EQ(rendered(known_chat_template("chatml"), messages, options),
            "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nIt is ");
  EXPECT_EQ(rendered(known_chat_template("gemma"), messages, options),
            "<s><start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\nIt is");
  EXPECT_NE(testing::error_of([&] { rendered("x", messages, options); }).find("leaves the last message out"),
            std::string::npos);
  EXPECT_NE(testing::error_of([&] { rendered("x", Json::array(), options); }).find("no message"), std::string::npos);
}

// The tokens that a session reads question by question add up to the whole conversation.
TEST(Chat, TurnByTurn) {
  for (const char* name : {"chatml", "llama2", "mistral", "mistral-v1", "mistral-v3", "llama3", "llama3.1", "llama3.2",
                           "gemma", "rwkv-world"}) {
    const Marks marks(known_chat_template(name, "default"));
    const Chat chat(marks);
    Json messages = talk({{"system", "S {bos}"}, {"user", " Q "}});
    auto tokens = chat.encode(chat.render(messages)).tokens;
    messages.push_back(chat_message("assistant", "A"));
    const std::string answer = std::string(chat.render(messages).bytes()).substr(tokens.size());
    const std::string said = answer.substr(0, answer.find('A') + 1);
    tokens.insert(tokens.end(), said.begin(), said.end());
    messages.push_back(chat_message("user", "R"));
    const auto whole = chat.render(messages);
    EXPECT_TRUE(chat.keeps(whole, messages, 2, {})) << name;
    const auto next = chat.encode_next(whole, 2, 'A');
    ASSERT_TRUE(next) << name;
    tokens.insert(tokens.end(), next->begin(), next->end());
    EXPECT_EQ(tokens, chat.encode(whole).tokens) << name;
  }
}

TEST(Chat, TheModelsOwnMarkIsNotReadAgain) {
  const Marks marks("{% for m in messages %}{{ m.content }}!\n{% endfor %}", {'!', '?'});
  const Chat chat(marks);
  const auto text = chat.render(talk({{"user", "Q"}, {"assistant", "A"}, {"user", "R"}}));
  const auto next = [&](int32_t last) { return marks.decode(chat.encode_next(text, 1, last).value()); };
  EXPECT_EQ(next('A'), "!\nR!\n");
  EXPECT_EQ(next('!'), "\nR!\n");
  EXPECT_EQ(next('?'), "\nR!\n") << "another end in its place";
  EXPECT_FALSE(chat.encode_next(chat.render(talk({{"user", "Q"}, {"assistant", ""}, {"user", "R"}})), 1, 'A'));
}

TEST(Chat, SeesWhatATemplateRewrites) {
  const Marks marks(
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content.split('</think>')[-1] | trim }}\n{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}");
  const Chat chat(marks);
  const auto keeps = [&](const char* answer) {
    const Json messages = talk({{"user", "Q"}, {"assistant", answer}, {"user", "R"}});
    return chat.keeps(chat.render(messages), messages, 1, {});
  };
  EXPECT_TRUE(keeps(" A\n"));
  EXPECT_FALSE(keeps("<think>Hm</think>A"));
}

TEST(Chat, FindsWhereConversationsDiverge) {
  const Marks marks(known_chat_template("chatml"));
  const Chat chat(marks);
  const auto text = chat.render(kTalk);
  const auto [tokens, shared] = chat.encode(text, {1, 3});
  const std::string& bytes = text.bytes();
  EXPECT_EQ(shared,
            (std::vector<int64_t>{static_cast<int64_t>(bytes.find("Q<")), static_cast<int64_t>(bytes.find("R<"))}));
}

TEST(Chat, OfAModelThatWasNotTaughtToIsOneText) {
  // A space before every text, as in Llama 2's tokenizer.
  class Spaced : public Marks {
   public:
    Spaced() : Marks("") {}
    std::vector<int32_t> encode(std::string_view text) const override {
      std::vector<int32_t> tokens = {' '};
      tokens.insert(tokens.end(), text.begin(), text.end());
      return tokens;
    }
  };
  const Spaced letters;
  const Chat chat(letters);
  EXPECT_EQ(chat.render(kTalk).bytes(), "S\nQA\nR");
  EXPECT_EQ(chat.render(talk({{"user", "Q"}, {"user", "R"}})).bytes(), "Q\nR");
  EXPECT_EQ(letters.decode(chat.encode(chat.render(talk({{"user", "Q"}}))).tokens), " Q");
  const auto begun = chat.render(talk({{"user", "Q"}, {"assistant", " A"}, {"system", "S"}, {"user", "R"}}));
  EXPECT_EQ(letters.decode(chat.encode_next(begun, 1, 'A').value()), "\nS\nR");  // no second space
}

TEST(Chat, Refusals) {
  using testing::error_of;
  const Marks untaught(""), broken("{% for %}"), refusing("{{ raise_exception('only users here') }}");
  EXPECT_NE(error_of([&] { Chat(untaught).need_template(); }).find("was not taught to chat"), std::string::npos);
  EXPECT_NE(Chat(broken).problem().find("line 1"), std::string::npos);
  EXPECT_NE(error_of([&] { Chat(broken).need_template(); }).find("cannot be used"), std::string::npos);
  EXPECT_NE(error_of([&] { Chat(refusing).render(kTalk); }).find("refuses the conversation: only users here"),
            std::string::npos);
  const Marks gemma(known_chat_template("gemma"));
  EXPECT_NE(error_of([&] { Chat(gemma).render(talk({{"tool", "x"}})); }).find("got tool"), std::string::npos);
}

}  // namespace
}  // namespace cortado
