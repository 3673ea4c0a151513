// Text to tokens and back: byte, character, SentencePiece.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "byte", "char", "sentencepiece"
  virtual int64_t vocabulary() const = 0;
  // decode(encode(text)) == text for any text the tokenizer covers (byte and SentencePiece with byte fallback: any
  // UTF-8; byte: any bytes). A character that the char tokenizer has not seen is an InputError that names it.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;
  // Writes DIR/tokenizer.json (and DIR/tokenizer.model for SentencePiece).
  virtual void save(const std::string& directory) const = 0;
};

// Reads what save wrote; missing, broken or unknown: InputError.
std::shared_ptr<Tokenizer> load_tokenizer(const std::string& directory);

// spec: "byte", "char", "sentencepiece:8000". `files` are the texts to learn from (char, sentencepiece), read in
// pieces: they may be larger than memory.
std::shared_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::vector<std::string>& files);

// Gives the next piece of a text (of whole characters, appended to the string); false at the end.
using TextSource = std::function<bool(std::string& piece)>;

// The same, learning from a text that comes in pieces. A wrong spec: InputError. The byte tokenizer reads nothing.
std::shared_ptr<Tokenizer> learn_tokenizer(const std::string& spec, const TextSource& source);

// Throws InputError unless `spec` is one that make_tokenizer takes.
void check_tokenizer_spec(const std::string& spec);

// Decodes a stream token by token: returns only whole UTF-8 characters, holding an unfinished one back (tokens may
// split a character).
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer);
  std::string push(int32_t token);
  std::string finish();  // what is held back, as U+FFFD if it is not valid

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;  // bytes of an unfinished character
};

}  // namespace cortado
