#include "cortado/generate/generate.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

namespace {

// Tokens that a decoder must have seen to go on as in one text: SentencePiece drops a space at a text's beginning, and
// a character's bytes may be several tokens.
constexpr size_t kDecoderContext = 8;

// None without a tokenizer.
std::optional<StreamDecoder> decoder_after(const Session& session) {
  if (!session.tokenizer()) return std::nullopt;
  StreamDecoder decoder(session.tokenizer());
  const auto recent = session.recent();
  for (const int32_t token : recent.last(std::min(kDecoderContext, recent.size()))) decoder.push(token);
  return decoder;
}

// Length of the longest end of `text` that is a proper beginning of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

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
  auto decoder = decoder_after(session);
  // Many models have more rows than tokens, to a round number: those never were trained.
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

}  // namespace cortado
