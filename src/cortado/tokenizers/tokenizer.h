// Text to tokens and back: byte, character, SentencePiece, and the byte-pair encodings of pretrained models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cortado {

// How a model was taught to talk (chat.h): which template, and what it says about itself when nobody says otherwise.
struct ChatStyle {
  std::string name;  // empty: it was not
  std::string system;
  std::string problem = {};  // it was, but `name` is empty: why

  bool taught() const { return !name.empty() || !problem.empty(); }
};

// Tokens with a meaning of their own; -1 where there is none.
struct SpecialTokens {
  int32_t begin = -1, end = -1, unknown = -1, padding = -1;
  std::vector<int32_t> prefix, suffix;  // what a whole text begins with and ends with; encode does not add them
  std::vector<int32_t> stops;           // a model that writes one of these has finished
  ChatStyle chat;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "byte", "char", "sentencepiece", "bpe"
  virtual int64_t vocabulary() const = 0;
  // decode(encode(text)) == text for any text the tokenizer covers (byte and SentencePiece with byte fallback: any
  // UTF-8; byte: any bytes; bpe: what its model's own tokenizer keeps). A character that the char tokenizer has not
  // seen is an InputError that names it.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;
  // What one token stands for in the middle of a text: decode may treat the first one in another way.
  virtual std::string piece(int32_t token) const { return decode({token}); }
  virtual bool is_special(int32_t /*token*/) const { return false; }     // a mark rather than text
  virtual const SpecialTokens& special() const;                          // none, if not overridden
  virtual int32_t find(std::string_view /*token*/) const { return -1; }  // the id of a token by its text; -1: unknown
  // Writes DIR/tokenizer.json (and DIR/tokenizer.model for SentencePiece, DIR/pieces.json for bpe).
  virtual void save(const std::string& directory) const = 0;
};

// encode, with the marks that the model expects at the beginning and the end of a whole text.
std::vector<int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text);
// The same without the end: a text to go on with.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

// Reads what save wrote; missing, broken or unknown: InputError.
std::shared_ptr<Tokenizer> load_tokenizer(const std::string& directory);

// Gives the next piece of a text (of whole characters, appended to the string); false at the end.
using TextSource = std::function<bool(std::string& piece)>;

// spec: "byte", "char", "sentencepiece:8000". Those that learn, learn from a text that comes in pieces: it may be larger
// than memory. A wrong spec, no text: InputError.
std::shared_ptr<Tokenizer> learn_tokenizer(const std::string& spec, const TextSource& source);
// The same from whole files.
std::shared_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::vector<std::string>& files);

// Throws InputError unless `spec` is one that learn_tokenizer takes.
void check_tokenizer_spec(const std::string& spec);

// Decodes a stream token by token: returns only whole UTF-8 characters, holding an unfinished one back (tokens may
// split a character), and nothing for special tokens.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::string push(int32_t token);
  std::string finish();  // what is held back, as U+FFFD if it is not valid

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;   // bytes of an unfinished character
  bool started_ = false;  // a token that is text has come
};

}  // namespace cortado
