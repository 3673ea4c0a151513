#include "cortado/generate/conversation.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

Conversation::Conversation(Session& session, const std::string& system)
    : session_(session), chat_(*session.tokenizer()) {
  fail_input_if(session.depth() > 0 && !system.empty(),
                "[chat] the loaded state already has its system message: it cannot get another one");
  if (!system.empty()) messages_ = {{"system", system}};
  // What a loaded session has read: for what follows only that it ended with an answer matters.
  if (session.depth() > 0) messages_ = {{"user", ""}, {"assistant", ""}};
}

bool Conversation::turn_has_ended() const {
  const auto& stops = session_.tokenizer()->special().stops;
  const auto recent = session_.recent();
  return !recent.empty() && std::find(stops.begin(), stops.end(), recent.back()) != stops.end();
}

int64_t Conversation::ask(const std::string& question, const std::function<bool()>& cancelled) {
  std::string text;
  if (messages_.size() < 2) {
    auto all = messages_;
    all.push_back({"user", question});
    text = chat_.render(all, true);
  } else {
    text = (turn_has_ended() ? "" : chat_.end_of_turn()) + chat_.next(messages_, question);
  }
  const auto tokens = session_.tokenizer()->encode(text);
  const auto count = static_cast<int64_t>(tokens.size());
  std::optional<Session> before;  // a question that is read in one go cannot be cut
  if (cancelled && count > Session::kChunk) before = session_.fork();
  if (session_.prefill(tokens, Session::kChunk, cancelled) < count) {
    session_ = std::move(*before);
    return 0;
  }
  messages_.push_back({"user", question});
  messages_.push_back({"assistant", ""});
  return count;
}

Generated Conversation::answer(GenerateOptions options, const std::function<void(std::string_view)>& write) {
  options.stop_tokens = session_.tokenizer()->special().stops;
  return generate(session_, options, write);
}

}  // namespace cortado
