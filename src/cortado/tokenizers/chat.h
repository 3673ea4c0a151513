// Conversations as the text that a model was taught them in.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

struct ChatMessage {
  std::string role;  // "system" (only the first), "user", "assistant"
  std::string content;
};

// Which style a model's own chat template is: the one that writes two probe conversations as the template itself does
// (jinja.h). Without a template, by the tokens there are. An empty name: none of those known here, and its problem.
//
//   chatml       Qwen2, SmolLM2: <|im_start|>user\n...<|im_end|>\n
//   llama2       <s>[INST] <<SYS>>\n...\n<</SYS>>\n\n... [/INST] ... </s>
//   mistral      <s> [INST] ... [/INST] ...</s>; mistral-v1 without the first space, mistral-v3: ...[/INST]
//   llama3       <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>; llama3.1 has a system message with dates,
//                llama3.2 with that of today
//   gemma        <start_of_turn>user\n...<end_of_turn>\n
// `begin`, `end`: the texts of those tokens.
ChatStyle detect_chat_style(const std::string& chat_template, const std::string& begin, const std::string& end,
                            const std::function<bool(std::string_view)>& has_token);

class Chat {
 public:
  // InputError when the tokenizer's model was not taught to chat, or in a style that is unknown here. The tokenizer
  // outlives it.
  explicit Chat(const Tokenizer& tokenizer);
  // In that style, whose name is one of those above; only with a tokenizer it gives tokens.
  Chat(const ChatStyle& style, const std::string& begin, const std::string& end, const Tokenizer* tokenizer = nullptr);
  // Also of a model that was not taught to: it goes on with the conversation as one text, in which an answer stands
  // directly behind what it goes on with, and every other message on a line of its own. InputError: it was taught to, in
  // a style that is unknown here.
  static Chat or_text(const Tokenizer& tokenizer);

  // The whole conversation; with `ask` up to where the assistant's next answer begins. Without a system message the
  // model's own is taken, if it has one. To be encoded as it is: the marks at its beginning are in it. InputError: an
  // unknown role, a system message that is not the first.
  std::string render(const std::vector<ChatMessage>& messages, bool ask) const;

  // What a session that holds `messages`, the last one the assistant's, must read for the next question: without the
  // mark that ends the assistant's turn, which the model has written itself (or end_of_turn() has to be read first).
  std::string next(const std::vector<ChatMessage>& messages, const std::vector<ChatMessage>& more) const;
  const std::string& end_of_turn() const { return end_of_turn_; }

  // The same as tokens. `ended`: the last answer's turn has its mark.
  std::vector<int32_t> encode(const std::vector<ChatMessage>& messages, bool ask) const;
  std::vector<int32_t> encode_next(const std::vector<ChatMessage>& messages, const std::vector<ChatMessage>& more,
                                   bool ended) const;

  // The same as a template of Jinja's, as tokenizer_config.json holds it: with messages, add_generation_prompt,
  // bos_token and eos_token.
  std::string jinja() const;

  struct Form;

 private:
  explicit Chat(const Tokenizer* tokenizer) : tokenizer_(tokenizer), form_(nullptr) {}
  std::string expanded(const char* text) const;

  const Tokenizer* tokenizer_;
  const Form* form_;  // null: one text
  std::string begin_, end_of_turn_, system_;
};

}  // namespace cortado
