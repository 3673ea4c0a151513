// The tokenizer classes behind tokenizer.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/base/utf8.h"
#include "cortado/tokenizers/bpe/bpe_tokenizer.h"

namespace cortado {

// One token per byte.
class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "byte"; }
  int64_t vocabulary() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& tokens) const override;
  void save(const std::string& directory) const override;
};

// One token per character: its rank among the characters of the training text, sorted by code point (as in char-rnn and
// nanoGPT).
class CharTokenizer : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<uint32_t> sorted_characters);
  static std::shared_ptr<Tokenizer> learn(const TextSource& source);
  static std::shared_ptr<Tokenizer> load(JsonReader& reader);

  std::string kind() const override { return "char"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(characters_.size()); }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& tokens) const override;
  void save(const std::string& directory) const override;

 private:
  [[noreturn]] void refuse(const Utf8Char& c, size_t at) const;

  std::vector<uint32_t> characters_;
  std::vector<int32_t> rank_;  // indexed by code point, up to the last character; -1 if absent
};

// Byte-pair pieces, with bytes for characters that no piece covers. The SentencePiece library is needed only for
// training.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model_bytes, const std::string& source_name);
  static std::shared_ptr<Tokenizer> learn(const TextSource& source, int64_t vocabulary);
  static std::shared_ptr<Tokenizer> load(JsonReader& reader, const std::string& directory);

  std::string kind() const override { return "sentencepiece"; }
  int64_t vocabulary() const override { return pieces_.vocabulary(); }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& tokens) const override { return pieces_.decode(tokens); }
  void save(const std::string& directory) const override;
  const BpeTokenizer& pieces() const { return pieces_; }

 private:
  std::string model_bytes_;
  BpeTokenizer pieces_;
  std::vector<int32_t> space_mark_;  // the tokens of its bytes
};

// Writes DIR/tokenizer.json: the keys common to all kinds, and those of `settings`.
void save_tokenizer_json(const Tokenizer& tokenizer, const std::string& directory, const Json& settings);

// Throws InputError if the token is not in 0 .. vocabulary - 1.
void check_token(int32_t token, int64_t vocabulary);

}  // namespace cortado
