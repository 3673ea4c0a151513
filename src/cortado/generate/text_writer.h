// The text of tokens as they are written.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Passes text through until a stop string appears. Holds back text that may be the beginning of a stop string.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);  // throws InputError for an empty stop string

  // Returns the text that is safe to show. When a stop string is complete: the text before it, and nothing afterwards.
  std::string push(std::string_view text);
  std::string finish();  // returns the text still held back
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

struct TextOptions {
  std::vector<std::string> stops = {};    // strings that end the text and are not part of it
  std::vector<int32_t> stop_tokens = {};  // tokens that do so
  bool drop_spaces = false;               // at the text's beginning
};

// Turns tokens into text: whole UTF-8 characters, up to a stop token or a stop string.
class TextWriter {
 public:
  // `before`: the tokens that the text follows; SentencePiece drops a space where there are none. Without a tokenizer
  // there is no text, and only stop tokens end it. Throws InputError for an empty stop string.
  TextWriter(const std::shared_ptr<const Tokenizer>& tokenizer, std::span<const int32_t> before, TextOptions options);

  // Returns the text that is safe to show.
  std::string push(int32_t token);
  // Returns what was held back. It may complete a stop string.
  std::string finish();

  bool ended_by_token() const { return ended_by_token_; }
  bool ended_by_string() const { return filter_.stopped(); }
  bool ended() const { return ended_by_token() || ended_by_string(); }

  // The last token's text, of which push() may have held back or left out some.
  const std::string& decoded() const { return decoded_; }

 private:
  std::string shown(std::string text);

  std::optional<StreamDecoder> decoder_;
  StopFilter filter_;
  std::vector<int32_t> stop_tokens_;
  std::string decoded_;
  bool drop_spaces_, ended_by_token_ = false;
};

}  // namespace cortado
