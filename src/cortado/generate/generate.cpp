#include "cortado/generate/generate.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
namespace {

// Number of earlier tokens that a decoder needs to continue a text correctly: SentencePiece drops a space at the
// beginning of a text, and a character's bytes may span several tokens.
constexpr size_t kDecoderContext = 8;

// Returns the length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

std::optional<StreamDecoder> decoder_after(const std::shared_ptr<const Tokenizer>& tokenizer,
                                           std::span<const int32_t> tokens) {
  if (!tokenizer) return std::nullopt;
  StreamDecoder decoder(tokenizer);
  for (const int32_t token : tokens.last(std::min(kDecoderContext, tokens.size()))) {
    if (token < tokenizer->vocabulary()) decoder.push(token);  // skip padding rows of the vocabulary
  }
  return decoder;
}

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const auto& stop : stops_) fail_input_if(stop.empty(), "[generate] a stop string must not be empty");
}

std::string StopFilter::push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  size_t first = std::string::npos, keep = 0;
  for (const auto& stop : stops_) {
    first = std::min(first, held_.find(stop));
    keep = std::max(keep, overlap(held_, stop));
  }
  stopped_ = first != std::string::npos;
  const size_t length = stopped_ ? first : held_.size() - keep;
  std::string shown = held_.substr(0, length);
  held_.erase(0, stopped_ ? held_.size() : length);
  return shown;
}

std::string StopFilter::finish() {
  stopped_ = true;
  return std::exchange(held_, {});
}

Generated generate(Session& session, const GenerateOptions& options,
                   const std::function<void(std::string_view)>& write) {
  Sampler sampler(options.sampling);
  StopFilter filter(options.stops);
  auto decoder = decoder_after(session.tokenizer(), session.recent());
  // Many models round their vocabulary up; the additional rows were never trained.
  const int64_t vocabulary = decoder ? session.tokenizer()->vocabulary() : session.model().config().vocabulary;
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
    const auto& stops = options.stop_tokens;
    const bool last = std::find(stops.begin(), stops.end(), token) != stops.end();
    if (options.on_token) options.on_token(token);
    if (decoder && !last) show(filter.push(decoder->push(token)));
    session.step(token);
    ++result.tokens;
    if (last || filter.stopped()) {
      result.end = Generated::End::kStop;
      break;
    }
  }
  if (decoder && !filter.stopped()) show(filter.push(decoder->finish()));
  if (filter.stopped()) {
    result.end = Generated::End::kStop;
  } else {
    show(filter.finish());
  }
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
  const auto& stops = session_.tokenizer()->special().stops;
  const auto recent = session_.recent();
  return !recent.empty() && std::find(stops.begin(), stops.end(), recent.back()) != stops.end();
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
  options.stop_tokens = session_.tokenizer()->special().stops;
  return generate(session_, options, write);
}

}  // namespace cortado
