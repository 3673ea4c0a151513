// Text to token ids and back: byte, character, SentencePiece, and the byte-pair encodings of pretrained models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cortado/tokenizers/jinja/text.h"

namespace cortado {

// How a model was trained to chat: its chat templates in Jinja's language (chat.h).
struct ChatTemplates {
  std::string text;  // the default one; empty: the model was not trained to chat
  std::vector<std::pair<std::string, std::string>> named = {};  // others by name, such as tool_use

  bool taught() const { return !text.empty(); }
};

// Token ids with a special role; -1 if there is none.
struct SpecialTokens {
  int32_t begin = -1, end = -1, unknown = -1, padding = -1;
  std::vector<int32_t> prefix, suffix;  // begin and end a whole text; encode does not add them
  std::vector<int32_t> stops;           // generation ends when the model writes one of these
  ChatTemplates chat;

  bool is_stop(int32_t token) const;
};

// A conversation's tokens, and for each length of the text that was asked for, how many tokens it shares with the text
// that ends there.
struct EncodedChat {
  std::vector<int32_t> tokens;
  std::vector<int64_t> shared;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string kind() const = 0;  // "byte", "char", "sentencepiece", "bpe"
  virtual int64_t vocabulary() const = 0;
  // decode(encode(text)) == text for any text that the tokenizer covers: byte covers any bytes, SentencePiece with byte
  // fallback any UTF-8, bpe whatever the model's own tokenizer keeps. InputError for a character that the char
  // tokenizer has not seen; the message names it.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Encodes a conversation. What is typed in it is text, even if it spells a special token or another token that the
  // chat template writes. The bytes at `lengths` are where another conversation may go on differently.
  virtual EncodedChat encode_chat(const jinja::Text& text, std::string_view chat_template,
                                  const std::vector<size_t>& lengths = {}) const;
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;
  // The text of a token in the middle of a text; decode may treat the first token differently.
  virtual std::string piece(int32_t token) const { return decode({token}); }
  // whether the token is a control token rather than text
  virtual bool is_special(int32_t /*token*/) const { return false; }
  virtual const SpecialTokens& special() const;                          // by default none
  virtual int32_t find(std::string_view /*token*/) const { return -1; }  // the id of a token by its text; -1: unknown
  // Writes DIR/tokenizer.json, for SentencePiece also DIR/tokenizer.model, for bpe also DIR/pieces.json.
  virtual void save(const std::string& directory) const = 0;
};

// Encodes a whole text, with the tokens that the model expects at its beginning and end.
std::vector<int32_t> encode_document(const Tokenizer& tokenizer, std::string_view text);
// Encodes a text to continue: like encode_document, but without the tokens at the end.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

// Reads a folder that save wrote. InputError if it is missing, broken or unknown.
std::shared_ptr<Tokenizer> load_tokenizer(const std::string& directory);

// Appends the next piece of a text (whole characters) to the string; returns false at the end.
using TextSource = std::function<bool(std::string& piece)>;

// Makes a tokenizer by `spec`: "byte", "char", "sentencepiece:8000". The kinds that are trained read the text in
// pieces, so it may be larger than memory. InputError for a wrong spec, and if there is no text.
std::shared_ptr<Tokenizer> learn_tokenizer(const std::string& spec, const TextSource& source);
// Like learn_tokenizer, with the text of whole files.
std::shared_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::vector<std::string>& files);

// Throws InputError unless learn_tokenizer accepts `spec`.
void check_tokenizer_spec(const std::string& spec);

// Decodes a stream token by token. Returns only whole UTF-8 characters: tokens may split a character, and then its
// bytes are held back. Returns nothing for special tokens.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}
  std::string push(int32_t token);
  std::string finish();  // the bytes held back, as U+FFFD if they are not valid

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;   // bytes of an unfinished character
  bool started_ = false;  // whether a token that is text has been pushed
};

}  // namespace cortado
