#include "cortado/generate/text_writer.h"

#include <algorithm>
#include <utility>

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

std::string StopFilter::finish() { return std::exchange(held_, {}); }

TextWriter::TextWriter(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> before,
                       TextOptions options)
    : filter_(std::move(options.stops)),
      stop_tokens_(std::move(options.stop_tokens)),
      drop_spaces_(options.drop_spaces) {
  if (!tokenizer) return;
  decoder_.emplace(tokenizer);
  for (const int32_t token : before.last(std::min(kDecoderContext, before.size()))) {
    if (token < tokenizer->vocabulary()) decoder_->push(token);  // skip padding rows of the vocabulary
  }
}

std::string TextWriter::shown(std::string text) {
  if (drop_spaces_) text.erase(0, text.find_first_not_of(' '));
  drop_spaces_ &= text.empty();
  return text;
}

std::string TextWriter::push(int32_t token) {
  ended_by_token_ = std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
  if (!decoder_ || ended_by_token_) return "";
  decoded_ = decoder_->push(token);
  return shown(filter_.push(decoded_));
}

std::string TextWriter::finish() {
  if (!decoder_) return "";
  std::string text = filter_.push(decoder_->finish());
  return shown(text + filter_.finish());
}

}  // namespace cortado
