// Conversations in the text format that a model was trained on.
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

// Detects the style of a model's chat template: the one that renders the probe conversations exactly as the template
// does (jinja.h). Without a template, the tokens decide. If the template matches no style, `name` is empty and
// `problem` says why.
//
//   chatml       Qwen2, SmolLM2: <|im_start|>user\n...<|im_end|>\n
//   llama2       <s>[INST] <<SYS>>\n...\n<</SYS>>\n\n... [/INST] ... </s>
//   mistral      <s> [INST] ... [/INST] ...</s>; mistral-v1 without the first space, mistral-v3: ...[/INST]
//   llama3       <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>; llama3.1 has a system message with dates,
//                llama3.2 with today's date
//   gemma        <start_of_turn>user\n...<end_of_turn>\n
//   rwkv-world   User: ...\n\nAssistant: ...\n\n
// `begin`, `end`: the texts of the begin and end tokens.
ChatStyle detect_chat_style(const std::string& chat_template, const std::string& begin, const std::string& end,
                            const std::function<bool(std::string_view)>& has_token);

class Chat {
 public:
  // InputError if the model was not trained to chat, or in a style that is not known here. The tokenizer must outlive
  // this object.
  explicit Chat(const Tokenizer& tokenizer);
  // Uses a known style by its name. Without a tokenizer, the encode functions must not be called.
  Chat(const ChatStyle& style, const std::string& begin, const std::string& end, const Tokenizer* tokenizer = nullptr);
  // Also accepts a model that was not trained to chat. It continues the conversation as one text: an answer directly
  // follows the text that it continues, and each other message begins a new line. InputError if the model was trained
  // in a style that is not known here.
  static Chat or_text(const Tokenizer& tokenizer);

  // Renders the whole conversation; with `ask`, up to where the assistant's next answer begins. Without a system
  // message, the model's default one is used, if it has one. The result contains the marks at its beginning, so encode
  // it without a prefix. InputError for an unknown role, and for a system message that is not the first message.
  std::string render(const std::vector<ChatMessage>& messages, bool ask) const;

  // The text that a session must read for the next question, if it holds `messages`, of which the last is the
  // assistant's. It begins after the mark that ends the assistant's turn: the model has written that mark, or the
  // session reads end_of_turn() first.
  std::string next(const std::vector<ChatMessage>& messages, const std::vector<ChatMessage>& more) const;
  const std::string& end_of_turn() const { return end_of_turn_; }

  // The results of render and next as tokens. `ended`: the last answer already ends with its mark.
  std::vector<int32_t> encode(const std::vector<ChatMessage>& messages, bool ask) const;
  // The tokens of encode(messages, true), then those of the first `counts` messages, but for counts whose text the
  // whole text does not begin with.
  std::vector<std::vector<int32_t>> encode_beginnings(const std::vector<ChatMessage>& messages,
                                                      const std::vector<size_t>& counts) const;
  std::vector<int32_t> encode_next(const std::vector<ChatMessage>& messages, const std::vector<ChatMessage>& more,
                                   bool ended) const;

  // The style as a Jinja template for tokenizer_config.json. Its variables are messages, add_generation_prompt,
  // bos_token and eos_token.
  std::string jinja() const;

  struct Form;

 private:
  explicit Chat(const Tokenizer* tokenizer) : tokenizer_(tokenizer), form_(nullptr) {}
  std::string expanded(const char* text) const;

  const Tokenizer* tokenizer_;
  const Form* form_;  // null: no style, the conversation is plain text
  std::string begin_, end_of_turn_, system_;
};

}  // namespace cortado
