// Token files: memory-mapped tokens with document bounds, and the folder that `cortado prepare` makes.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Tokens and the offsets at which documents start: a read-only memory map, or a tensor in memory.
class TokenFile {
 public:
  // InputError if the file is truncated, not a token file, ...
  static std::shared_ptr<TokenFile> open(const std::string& path);
  // `tokens` is [N] of any integer type; `name` is for messages.
  TokenFile(at::Tensor tokens, std::vector<int64_t> documents, int64_t vocabulary, std::string name = "tokens");

  int64_t size() const { return tokens_.size(0); }    // tokens
  int64_t vocabulary() const { return vocabulary_; }  // greater than all tokens
  // Index of each document's first token; ascending from 0.
  const std::vector<int64_t>& documents() const { return documents_; }
  // Returns int64 [count], which must not be written to. InputError for a range beyond the end, or a token outside the
  // vocabulary.
  at::Tensor read(int64_t begin, int64_t count) const;

 private:
  at::Tensor tokens_;
  std::vector<int64_t> documents_;
  int64_t vocabulary_;
  std::string name_;
};

// Wraps int64 [N]; `documents` lists the index of each document's first token.
std::shared_ptr<TokenFile> tokens_in_memory(const at::Tensor& tokens, std::vector<int64_t> documents = {0});

// Distinguishes texts: a hash of the length and of 64 ranges of up to 1024 tokens, evenly spread.
std::string fingerprint(const TokenFile& tokens);

// An open dataset folder: DIR/train.tokens, DIR/validation.tokens, DIR/tokenizer/, DIR/dataset.json (sources, sizes,
// split, the tokenizer's spec).
struct Dataset {
  std::shared_ptr<TokenFile> train, validation;
  std::shared_ptr<Tokenizer> tokenizer;
};
// InputError if files are missing, broken, or do not belong together.
Dataset open_dataset(const std::string& directory);

struct PrepareOptions {
  std::vector<std::string> files = {};
  std::string tokenizer = "byte";
  std::string out = "";
  // Share of the validation part: the end of the text before the test part. As in nanoGPT, it counts characters, with
  // several files those of their concatenation.
  double validation = 0.1;
  double test = 0;  // share of the test part, the end of the text; it becomes DIR/test.txt, unchanged
  // Separates documents inside a file; if empty, each file is one document.
  std::string document_separator = "";
  bool progress = true;
};
// Streams the texts, which may be larger than memory, into the folder `out`: writes a temporary folder beside it and
// renames that. InputError, with file and byte offset, for a missing, empty, binary (NUL bytes) or non-UTF-8 text (the
// byte tokenizer accepts any bytes); InputError if `out` has files that are not a dataset's, or is not writable.
// Failure if the disk is full, and if interrupted.
void prepare_dataset(const PrepareOptions& options);

// Opens texts as a dataset without keeping a folder: small texts in memory, larger ones in a temporary folder that is
// removed. Ignores options.out. With `tokenizer`, uses this one instead of training options.tokenizer.
Dataset open_text_as_dataset(const PrepareOptions& options, const std::shared_ptr<Tokenizer>& tokenizer = nullptr);

// --- Destinations of tokens: a file, or memory. ---

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // The next token begins a document. Documents without tokens vanish.
  void start_document() { pending_document_ = true; }
  void append(const std::vector<int32_t>& tokens);
  int64_t size() const { return size_; }
  const std::vector<int64_t>& documents() const { return documents_; }

 protected:
  virtual void write(const std::vector<int32_t>& tokens) = 0;

 private:
  std::vector<int64_t> documents_;
  int64_t size_ = 0;
  bool pending_document_ = true;
};

// Writes a token file, which appears at `path` only in finish(). Failure if the disk is full; then nothing is left
// behind.
//
// File format, little endian: magic "CRTDTOK1", uint32 version, uint32 bytes per token (2 or 4), uint64 tokens, uint64
// documents, uint64 vocabulary, uint64 hash of these 40 bytes; the tokens; zeros up to a multiple of 8; the index of
// each document's first token as uint64.
class TokenFileWriter : public TokenSink {
 public:
  TokenFileWriter(const std::string& path, int64_t vocabulary);
  void finish();

 protected:
  void write(const std::vector<int32_t>& tokens) override;

 private:
  AtomicFile file_;
  int64_t vocabulary_;
};

class MemoryTokens : public TokenSink {
 public:
  explicit MemoryTokens(int64_t vocabulary) : vocabulary_(vocabulary) {}
  std::shared_ptr<TokenFile> finish();

 protected:
  void write(const std::vector<int32_t>& tokens) override;

 private:
  std::vector<int32_t> tokens_;
  int64_t vocabulary_;
};

// The header at the beginning of a token file.
struct TokenFileHeader {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t tokens;
  uint64_t documents;
  uint64_t vocabulary;
  uint64_t hash;
};
static_assert(sizeof(TokenFileHeader) == 48);
inline constexpr char kTokenFileMagic[] = "CRTDTOK1";
inline constexpr uint32_t kTokenFileVersion = 1;
uint64_t header_hash(const TokenFileHeader& header);

}  // namespace cortado
