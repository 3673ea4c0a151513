// Writing text with a session.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/generate/sampling.h"
#include "cortado/generate/session.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

// Lets text through until a stop string appears in it. Holds back what may be the beginning of one.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);  // InputError: an empty stop string

  // The text that is safe to show. Once a stop string is complete: what came before it, and nothing ever after.
  std::string push(std::string_view text);
  std::string finish();  // what is still held back
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// Decodes what follows these tokens as the end of their text. None without a tokenizer.
std::optional<StreamDecoder> decoder_after(const std::shared_ptr<const Tokenizer>& tokenizer,
                                           std::span<const int32_t> tokens);

struct GenerateOptions {
  SamplingOptions sampling = {};
  int64_t tokens = 200;                   // at most
  std::vector<std::string> stops = {};    // ends the text, and is not part of it
  std::vector<int32_t> stop_tokens = {};  // the same by token, as special().stops has them
  std::function<bool()> cancelled = {};   // asked before every token
  // Called with every token before the session reads it.
  std::function<void(int32_t token)> on_token = {};
};

struct Generated {
  enum class End { kTokens, kStop, kCancelled };
  int64_t tokens = 0;  // sampled, and read back by the session
  End end = End::kTokens;
};

// Samples from the session's logits and reads every token back, so that the session ends after the last token, ready to
// go on. `write` gets the text as it comes, in whole UTF-8 characters; nothing of a session without a tokenizer. What
// the session holds includes the stop string or token that ended the text.
Generated generate(Session& session, const GenerateOptions& options,
                   const std::function<void(std::string_view)>& write);

// Talking with a model that was taught to: the session holds the conversation.
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
