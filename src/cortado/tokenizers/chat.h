// Conversations in the text format that a model was trained on: its chat template, rendered by Jinja (jinja/).
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/tokenizers/jinja/jinja.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// A message as templates read it: an object with "role", "content", and whatever else the template knows ("name",
// "tool_calls", "tool_call_id", "reasoning_content", ...). A conversation is a list of them.
Json chat_message(const std::string& role, const std::string& content);

// The chat template of a known format: "chatml" (with `system` as its default system message), "llama2", "llama3",
// "gemma", "mistral-v3", "rwkv-world", ... "" if the name is unknown.
std::string known_chat_template(const std::string& name, const std::string& system = "");
// The known template of a model that comes without one, by its tokens; "" if they are of no known format.
std::string chat_template_by_tokens(const std::function<bool(std::string_view)>& has_token);

// What a template gets beside the messages.
struct ChatOptions {
  bool ask = true;         // add_generation_prompt: up to where the next answer begins
  bool continues = false;  // continue_final_message: the answer goes on with the last message
  // Fit messages that the template has no place for (Chat::render).
  bool fits = false;
  Json tools = nullptr, documents = nullptr;
  Json more = Json::object();  // chat_template_kwargs
  std::time_t now = std::time(nullptr);
};

class Chat {
 public:
  // The tokenizer must outlive this object. A model that was not trained to chat continues the conversation as one
  // text: an answer directly follows the text that it continues, and each other message begins a new line.
  explicit Chat(const Tokenizer& tokenizer);

  // Why the model's template cannot be used; empty if it can.
  const std::string& problem() const { return problem_; }
  // Throws InputError unless the model was trained to chat with a template that can be used.
  void need_template() const;

  // Renders the conversation. Its parts that come from messages are typed by the messages' indices. Throws InputError
  // with the template's own message if it refuses the conversation. The text contains the marks at its beginning.
  // With options.fits, `developer` is `system` unless the template knows the word; and if the template refuses the
  // conversation, its system messages are joined into the first, and then put in front of the first user's.
  jinja::Text render(const Json& messages, const ChatOptions& options = {}) const;

  // The tokens of what render() returned, and the depths where other conversations may diverge from this one: before
  // each message of `divergences`.
  EncodedChat encode(const jinja::Text& text, const std::vector<size_t>& divergences = {}) const;

  // The tokens that a session reads next. It holds the tokens of a prompt and of the answer to it, of which `last` is the
  // last token; the answer is message number `answered` of the conversation. `text` is what render() returned for the
  // whole conversation. Nothing if the answer's end cannot be found in the text.
  std::optional<std::vector<int32_t>> encode_next(const jinja::Text& text, size_t answered, int32_t last) const;
  // Whether the template writes the conversation's beginning as the session read it: the prompt of the answer, then the
  // answer. Some templates rewrite earlier turns, for example without their thoughts.
  bool keeps(const jinja::Text& text, const Json& messages, size_t answered, const ChatOptions& options) const;

 private:
  jinja::Text render_as_is(const Json& messages, const ChatOptions& options) const;
  const jinja::Template& template_for(const ChatOptions& options) const;
  std::optional<size_t> end_of(const jinja::Text& text, size_t message) const;

  const Tokenizer* tokenizer_;
  std::string problem_;
  std::optional<jinja::Template> default_, tools_;  // without a default: the conversation is plain text
  Json own_;                                        // bos_token and the like
};

}  // namespace cortado
