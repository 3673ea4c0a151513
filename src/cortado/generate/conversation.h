// Talking with a model that was taught to: the session holds the conversation.
#pragma once

#include <string>
#include <vector>

#include "cortado/generate/generate.h"
#include "cortado/generate/session.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

class Conversation {
 public:
  // The session and its tokenizer outlive the conversation. A session that has read something is taken as one that
  // ended after an answer, and `system` must then be empty. InputError: the tokenizer has no chat template.
  Conversation(Session& session, const std::string& system);

  // Reads a question, up to where the answer begins. Returns the number of tokens; 0 when it was cancelled on the way:
  // then it was never asked.
  int64_t ask(const std::string& question, const std::function<bool()>& cancelled = {});

  // The model's answer, until one of the tokens that end it. An answer that was cut short (by its length, by
  // `cancelled`) is closed by the next question.
  Generated answer(GenerateOptions options, const std::function<void(std::string_view)>& write);

 private:
  bool turn_has_ended() const;

  Session& session_;
  Chat chat_;
  std::vector<ChatMessage> messages_;
};

}  // namespace cortado
