// Text generation with a session.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/generate/sampling.h"
#include "cortado/generate/session.h"
#include "cortado/generate/text_writer.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

// Options of generate().
struct GenerateOptions {
  SamplingOptions sampling = {};
  TextOptions text = {};
  int64_t tokens = 200;                  // largest number of tokens
  std::function<bool()> cancelled = {};  // asked before every token
  // Called with every sampled token before the session reads it.
  std::function<void(int32_t token)> on_token = {};
};

// The result of generate(): how many tokens it made, and why it ended.
struct Generated {
  enum class End { kTokens, kStop, kCancelled };
  int64_t tokens = 0;  // tokens sampled and read back by the session
  End end = End::kTokens;
};

// Samples from the session's logits and reads every token back, so the session ends after the last token and can
// continue. `write` gets the text in pieces of whole UTF-8 characters; it is not called without a tokenizer. The
// session's state includes the stop string or token that ended the text.
Generated generate(Session& session, const GenerateOptions& options,
                   const std::function<void(std::string_view)>& write);

// A conversation with a chat model. The session holds its state.
class Conversation {
 public:
  // The session and its tokenizer must outlive the conversation. A session that has read tokens is assumed to end after
  // an answer; `system` must then be empty. Throws InputError if the tokenizer has no chat template.
  Conversation(Session& session, const std::string& system);

  // Reads a question up to the beginning of the answer. Returns the number of tokens; 0 if it was cancelled, and the
  // session is then as before.
  int64_t ask(const std::string& question, const std::function<bool()>& cancelled = {});

  // Generates the model's answer up to a token that ends it. The next question closes an answer that was cut short by
  // its length or by `cancelled`.
  Generated answer(GenerateOptions options, const std::function<void(std::string_view)>& write);

 private:
  Session& session_;
  Chat chat_;
  Json messages_ = Json::array();  // the answers stand for themselves: the session holds their tokens
};

}  // namespace cortado
