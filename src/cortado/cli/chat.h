// cortado generate --chat.
#pragma once

#include <optional>
#include <string>

#include "cortado/base/stopwatch.h"
#include "cortado/generate/conversation.h"

namespace cortado {

inline constexpr int64_t kChatTokens = 1000;  // of an answer at most, if nobody says otherwise

struct ChatOptions {
  std::string system;
  std::optional<std::string> question;  // only this one; absent: the standard input's lines
  GenerateOptions generate;
};

struct ChatTotals {
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  int64_t tokens = 0;
  double decode_seconds = 0;
  int64_t refused = 0;  // lines that were no text
};

// Answers go to the standard output. Ctrl-C ends an answer; while a line is waited for, it ends the conversation.
ChatTotals run_chat(Session& session, const ChatOptions& options);

}  // namespace cortado
