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

namespace {

// Stands for an answer whose tokens the session holds already.
constexpr const char* kSaid = "...";

}  // namespace

Conversation::Conversation(Session& session, const std::string& system)
    : session_(session), chat_(*session.tokenizer()) {
  chat_.need_template();
  fail_input_if(session.depth() > 0 && !system.empty(),
                "[chat] the loaded state already has its system message: it cannot get another one");
  if (!system.empty()) messages_.push_back(chat_message("system", system));
  // All that matters about a loaded session is that it ended with an answer.
  if (session.depth() > 0) {
    messages_.push_back(chat_message("user", kSaid));
    messages_.push_back(chat_message("assistant", kSaid));
  }
}

int64_t Conversation::ask(const std::string& question, const std::function<bool()>& cancelled) {
  Json all = messages_;
  all.push_back(chat_message("user", question));
  const jinja::Text text = chat_.render(all, {.fits = true});
  std::vector<int32_t> tokens;
  if (messages_.size() < 2) {
    tokens = chat_.encode(text).tokens;
  } else {
    const auto recent = session_.recent();
    auto next = chat_.encode_next(text, messages_.size() - 1, recent.empty() ? -1 : recent.back());
    fail_input_if(!next,
                  "[chat] the model's chat template leaves earlier answers out: it cannot continue a conversation");
    tokens = std::move(*next);
  }
  const auto count = static_cast<int64_t>(tokens.size());
  // A question that fits one chunk cannot be cancelled, so it needs no copy.
  std::optional<Session> before;
  if (cancelled && count > Session::kChunk) before = session_.fork();
  if (session_.prefill(tokens, Session::kChunk, cancelled) < count) {
    session_ = std::move(*before);
    return 0;
  }
  messages_ = std::move(all);
  messages_.push_back(chat_message("assistant", kSaid));
  return count;
}

Generated Conversation::answer(GenerateOptions options, const std::function<void(std::string_view)>& write) {
  options.text.stop_tokens = session_.tokenizer()->special().stops;
  options.text.drop_spaces = true;  // some templates have a space before the answer
  return generate(session_, options, write);
}

}  // namespace cortado
