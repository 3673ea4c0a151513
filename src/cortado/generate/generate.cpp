#include "cortado/generate/generate.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
Generated generate(Session& session, const GenerateOptions& options,
                   const std::function<void(std::string_view)>& write) {
  Sampler sampler(options.sampling);
  TextWriter writer(session.tokenizer(), session.recent(), options.text);
  // Many models round their vocabulary up; the additional rows were never trained.
  const int64_t vocabulary =
      session.tokenizer() ? session.tokenizer()->vocabulary() : session.model().config().vocabulary;
  const auto show = [&](const std::string& text) {
    if (!text.empty()) write(text);
  };
  Generated result;
  while (result.tokens < options.tokens) {
    if (options.cancelled && options.cancelled()) {
      result.end = Generated::End::kCancelled;
      break;
    }
    const auto position = static_cast<uint64_t>(session.depth());
    const int32_t token = sampler.sample(session.logits().narrow(0, 0, vocabulary), session.recent(), position);
    if (options.on_token) options.on_token(token);
    show(writer.push(token));
    session.step(token);
    ++result.tokens;
    if (writer.ended()) break;
  }
  show(writer.finish());
  if (writer.ended()) result.end = Generated::End::kStop;
  return result;
}

Conversation::Conversation(Session& session, const std::string& system)
    : session_(session), chat_(*session.tokenizer()) {
  fail_input_if(session.depth() > 0 && !system.empty(),
                "[chat] the loaded state already has its system message: it cannot get another one");
  if (!system.empty()) messages_ = {{"system", system}};
  // All that matters about a loaded session is that it ended with an answer.
  if (session.depth() > 0) messages_ = {{"user", ""}, {"assistant", ""}};
}

bool Conversation::turn_has_ended() const {
  const auto recent = session_.recent();
  return !recent.empty() && session_.tokenizer()->special().is_stop(recent.back());
}

int64_t Conversation::ask(const std::string& question, const std::function<bool()>& cancelled) {
  const std::vector<ChatMessage> more = {{"user", question}};
  std::vector<int32_t> tokens;
  if (messages_.size() < 2) {
    auto all = messages_;
    all.insert(all.end(), more.begin(), more.end());
    tokens = chat_.encode(all, true);
  } else {
    tokens = chat_.encode_next(messages_, more, turn_has_ended());
  }
  const auto count = static_cast<int64_t>(tokens.size());
  // A question that fits one chunk cannot be cancelled, so it needs no copy.
  std::optional<Session> before;
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
  options.text.stop_tokens = session_.tokenizer()->special().stops;
  options.text.drop_spaces = true;  // some templates have a space before the answer
  return generate(session_, options, write);
}

}  // namespace cortado
