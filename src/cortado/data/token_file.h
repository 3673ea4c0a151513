// Token files: memory-mapped tokens with document bounds, and the folder that `cortado prepare` makes of texts.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// Tokens and the offsets where documents start: a memory-mapped, read-only file, or what is in memory.
class TokenFile {
 public:
  static std::shared_ptr<TokenFile> open(const std::string& path);  // InputError when truncated, foreign, ...
  // tokens [N] of any integer type; `name` for messages.
  TokenFile(at::Tensor tokens, std::vector<int64_t> documents, int64_t vocabulary, std::string name = "tokens");

  int64_t size() const { return tokens_.size(0); }                      // tokens
  int64_t vocabulary() const { return vocabulary_; }                    // all tokens are smaller
  const std::vector<int64_t>& documents() const { return documents_; }  // first token of each, ascending, first 0
  // int64 [count], not to be written to. InputError: beyond the end, a token that is not in the vocabulary.
  at::Tensor read(int64_t begin, int64_t count) const;

 private:
  at::Tensor tokens_;
  std::vector<int64_t> documents_;
  int64_t vocabulary_;
  std::string name_;
};

// int64 [N] of documents that begin at these tokens.
std::shared_ptr<TokenFile> tokens_in_memory(const at::Tensor& tokens, std::vector<int64_t> documents = {0});

// Tells one text from another: a hash of the length and of up to 64 stretches of 1024 tokens, spread evenly.
std::string fingerprint(const TokenFile& tokens);

// DIR/train.tokens, DIR/validation.tokens, DIR/tokenizer/, DIR/dataset.json (sources, sizes, split, the tokenizer's
// spec).
struct Dataset {
  std::shared_ptr<TokenFile> train, validation;
  std::shared_ptr<Tokenizer> tokenizer;
};
// Missing, broken or mixed up: InputError.
Dataset open_dataset(const std::string& directory);

struct PrepareOptions {
  std::vector<std::string> files = {};
  std::string tokenizer = "byte";
  std::string out = "";
  double validation =
      0.1;  // the last part of the text, or the last but the test part (by characters, as nanoGPT; with several files: of their concatenation)
  double test = 0;  // the part behind that, which becomes DIR/test.txt, as it is
  std::string document_separator =
      "";  // a text that separates documents inside a file; empty: each file is one document
  bool progress = true;
};
// Streams the texts (which may be larger than memory) into `out`. Missing, empty, binary (NUL bytes) or non-UTF-8 text:
// InputError naming file and byte offset (the byte tokenizer takes any bytes). `out` in use (has files that are not a
// dataset's), not writable: InputError. Full disk, interrupted: Failure. Written into a temporary folder beside and
// renamed.
void prepare_dataset(const PrepareOptions& options);

// Texts as a dataset at once, without a folder to keep: small ones in memory, larger ones in a temporary folder that is
// gone when the program ends. options.out is not used. `tokenizer`: one that is there already, instead of learning
// options.tokenizer.
Dataset open_text_as_dataset(const PrepareOptions& options, std::shared_ptr<Tokenizer> tokenizer = nullptr);

// --- Where tokens go: a file, or memory. ---

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // The next token begins a document (documents without tokens vanish).
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

// Writes a token file; nothing is seen at `path` before finish(). Trouble (full disk): Failure, nothing left behind.
//
// The file, little endian: magic "CRTDTOK1", uint32 version, uint32 bytes a token (2 or 4), uint64 tokens, uint64
// documents, uint64 vocabulary, uint64 hash of these 40 bytes; the tokens; zeros up to a multiple of 8; the first token
// of each document as uint64.
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

// The first bytes of a token file.
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
