#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/kinds.h"

namespace cortado {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens(text.size());
  std::transform(text.begin(), text.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

std::string ByteTokenizer::decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    check_token(token, vocabulary());
    text += static_cast<char>(token);
  }
  return text;
}

void ByteTokenizer::save(const std::string& directory) const { save_tokenizer_json(*this, directory, Json::object()); }

CharTokenizer::CharTokenizer(std::vector<uint32_t> sorted_characters) : characters_(std::move(sorted_characters)) {
  fail_input_if(characters_.empty(), "[tokenizer] char: there are no characters to learn from");
  rank_.assign(characters_.back() + 1, -1);
  for (size_t i = 0; i < characters_.size(); ++i) rank_[characters_[i]] = static_cast<int32_t>(i);
}

std::shared_ptr<Tokenizer> CharTokenizer::learn(const TextSource& source) {
  std::vector<bool> seen(0x110000);
  std::string piece;
  while (piece.clear(), source(piece)) {
    std::string_view rest = piece;
    while (!rest.empty()) {
      const Utf8Char c = utf8_char(rest);
      fail_input_if(c.length == 0, "[tokenizer] char: the text is not UTF-8");
      seen[c.code] = true;
      rest.remove_prefix(c.length);
    }
  }
  std::vector<uint32_t> characters;
  for (uint32_t code = 0; code < seen.size(); ++code) {
    if (seen[code]) characters.push_back(code);
  }
  return std::make_shared<CharTokenizer>(std::move(characters));
}

std::shared_ptr<Tokenizer> CharTokenizer::load(JsonReader& reader) {
  const std::string text = reader.text("characters");
  std::vector<uint32_t> characters;
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Char c = utf8_char(rest);
    if (c.length == 0) reader.fail("key \"characters\": not UTF-8");
    if (!characters.empty() && c.code <= characters.back()) {
      reader.fail("key \"characters\": expected every character once, sorted; ", describe_char(c.code), " is not");
    }
    characters.push_back(c.code);
    rest.remove_prefix(c.length);
  }
  if (characters.empty()) reader.fail("key \"characters\": expected at least one character, got \"\"");
  return std::make_shared<CharTokenizer>(std::move(characters));
}

// Separate from encode's loop, which would otherwise build an error message per character.
void CharTokenizer::refuse(const Utf8Char& c, size_t at) const {
  fail_input_if(c.length == 0, "[tokenizer] the text is not UTF-8 at byte offset ", at);
  throw InputError(concat("[tokenizer] unknown character ", describe_char(c.code), " at byte offset ", at,
                          ": it is not among the ", characters_.size(), " characters of the training text"));
}

std::vector<int32_t> CharTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const Utf8Char c = byte < 0x80 ? Utf8Char{byte, 1, false} : utf8_char(text.substr(at));
    const int32_t token = c.length > 0 && c.code < rank_.size() ? rank_[c.code] : -1;
    if (token < 0) refuse(c, at);
    tokens.push_back(token);
    at += c.length;
  }
  return tokens;
}

std::string CharTokenizer::decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    check_token(token, vocabulary());
    append_utf8(text, characters_[token]);
  }
  return text;
}

void CharTokenizer::save(const std::string& directory) const {
  std::string text;
  for (const uint32_t code : characters_) append_utf8(text, code);
  save_tokenizer_json(*this, directory, Json{{"characters", text}});
}

}  // namespace cortado
