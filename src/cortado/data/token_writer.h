// Where tokens go: a file, or memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/data/token_file.h"

namespace cortado {

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  void start_document();  // the next token begins a document (documents without tokens vanish)
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
