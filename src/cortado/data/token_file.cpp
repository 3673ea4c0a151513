#include "cortado/data/token_file.h"

#include <bit>
#include <cstring>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/data/token_writer.h"

namespace cortado {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Copies a range of tokens into an int64 tensor, refusing what is not in the vocabulary: it would read beyond the
// embedding.
template <typename T>
at::Tensor copy_tokens(const T* tokens, int64_t begin, int64_t count, int64_t vocabulary, const std::string& name) {
  at::Tensor out = at::empty({count}, at::kLong);
  int64_t* to = out.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<int64_t>(tokens[begin + i]);
    fail_input_if(to[i] < 0 || to[i] >= vocabulary, "[", name, "] is damaged: token ", to[i], " at ", begin + i,
                  " is not in the vocabulary of ", vocabulary);
  }
  return out;
}

void check_range(int64_t begin, int64_t count, int64_t size, const std::string& name) {
  fail_input_if(begin < 0 || count < 0 || begin > size - count, "[", name, "] has ", size, " tokens; asked for ", count,
                " from ", begin);
}

class MappedTokens : public TokenFile {
 public:
  explicit MappedTokens(const std::string& path) : path_(path), file_(path) {
    read_header();
    read_documents();
  }

  int64_t size() const override { return static_cast<int64_t>(header_.tokens); }
  int64_t vocabulary() const override { return static_cast<int64_t>(header_.vocabulary); }
  const std::vector<int64_t>& documents() const override { return documents_; }

  at::Tensor read(int64_t begin, int64_t count) const override {
    check_range(begin, count, size(), path_);
    const std::byte* tokens = file_.data() + sizeof header_;
    if (header_.token_bytes == 2) {
      return copy_tokens(reinterpret_cast<const uint16_t*>(tokens), begin, count, vocabulary(), path_);
    }
    return copy_tokens(reinterpret_cast<const uint32_t*>(tokens), begin, count, vocabulary(), path_);
  }

 private:
  void read_header() {
    fail_input_if(file_.size() < sizeof header_, "[", path_, "] is not a token file: too short");
    std::memcpy(&header_, file_.data(), sizeof header_);
    fail_input_if(std::memcmp(header_.magic, kTokenFileMagic, sizeof header_.magic) != 0, "[", path_,
                  "] is not a token file");
    fail_input_if(header_.hash != header_hash(header_), "[", path_, "] is damaged: the header's checksum is wrong");
    fail_input_if(header_.version != kTokenFileVersion, "[", path_, "] is a token file of version ", header_.version,
                  "; this program reads version ", kTokenFileVersion);
    // Against overflow of what follows; no such file exists.
    constexpr uint64_t kMost = uint64_t{1} << 56;
    fail_input_if((header_.token_bytes != 2 && header_.token_bytes != 4) || header_.tokens > kMost ||
                      header_.documents > header_.tokens || header_.vocabulary == 0 || header_.vocabulary > kMost,
                  "[", path_, "] is damaged: impossible sizes in the header");
    const uint64_t expected =
        sizeof header_ + padded(header_.tokens * header_.token_bytes) + header_.documents * sizeof(uint64_t);
    fail_input_if(file_.size() != expected, "[", path_, "] is ", file_.size() < expected ? "truncated" : "damaged",
                  ": expected ", expected, " bytes, got ", file_.size());
  }

  void read_documents() {
    documents_.resize(header_.documents);
    if (!documents_.empty()) {
      std::memcpy(documents_.data(), file_.data() + sizeof header_ + padded(header_.tokens * header_.token_bytes),
                  documents_.size() * sizeof(int64_t));
    }
    bool good = documents_.empty() == (header_.tokens == 0);
    for (size_t i = 0; good && i < documents_.size(); ++i) {
      good = i == 0 ? documents_[i] == 0 : documents_[i] > documents_[i - 1] && documents_[i] < size();
    }
    fail_input_if(!good, "[", path_, "] is damaged: the offsets of the documents are wrong");
  }

  std::string path_;
  MappedFile file_;
  TokenFileHeader header_{};
  std::vector<int64_t> documents_;
};

class HeldTokens : public TokenFile {
 public:
  HeldTokens(std::vector<int32_t> tokens, std::vector<int64_t> documents, int64_t vocabulary)
      : tokens_(std::move(tokens)), documents_(std::move(documents)), vocabulary_(vocabulary) {}

  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  int64_t vocabulary() const override { return vocabulary_; }
  const std::vector<int64_t>& documents() const override { return documents_; }
  at::Tensor read(int64_t begin, int64_t count) const override {
    check_range(begin, count, size(), "tokens");
    return copy_tokens(tokens_.data(), begin, count, vocabulary_, "tokens");
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> documents_;
  int64_t vocabulary_;
};

}  // namespace

std::string fingerprint(const TokenFile& tokens) {
  constexpr int64_t kStretches = 64, kLength = 1024;
  const int64_t count = std::min(kLength, tokens.size());
  std::string bytes = std::to_string(tokens.size());
  for (int64_t i = 0; i < kStretches; ++i) {
    const at::Tensor part = tokens.read((tokens.size() - count) * i / (kStretches - 1), count);
    bytes.append(reinterpret_cast<const char*>(part.data_ptr<int64_t>()), count * sizeof(int64_t));
  }
  return hash_text(bytes);
}

uint64_t header_hash(const TokenFileHeader& header) {
  return hash_bytes({reinterpret_cast<const char*>(&header), offsetof(TokenFileHeader, hash)});
}

std::shared_ptr<TokenFile> TokenFile::open(const std::string& path) { return std::make_shared<MappedTokens>(path); }

void TokenSink::start_document() { pending_document_ = true; }

void TokenSink::append(const std::vector<int32_t>& tokens) {
  if (tokens.empty()) return;
  if (pending_document_) documents_.push_back(size_);
  pending_document_ = false;
  size_ += static_cast<int64_t>(tokens.size());
  write(tokens);
}

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocabulary) : file_(path), vocabulary_(vocabulary) {
  file_.write(std::string(sizeof(TokenFileHeader), '\0'));
}

void TokenFileWriter::write(const std::vector<int32_t>& tokens) {
  if (vocabulary_ <= 1 << 16) {
    const std::vector<uint16_t> narrow(tokens.begin(), tokens.end());
    file_.write(narrow.data(), narrow.size() * sizeof(uint16_t));
  } else {
    file_.write(tokens.data(), tokens.size() * sizeof(int32_t));
  }
}

void TokenFileWriter::finish() {
  TokenFileHeader header{};
  std::memcpy(header.magic, kTokenFileMagic, sizeof header.magic);
  header.version = kTokenFileVersion;
  header.token_bytes = vocabulary_ <= 1 << 16 ? 2 : 4;
  header.tokens = static_cast<uint64_t>(size());
  header.documents = documents().size();
  header.vocabulary = static_cast<uint64_t>(vocabulary_);
  header.hash = header_hash(header);
  const uint64_t bytes = header.tokens * header.token_bytes;
  file_.write(std::string(padded(bytes) - bytes, '\0'));
  file_.write(documents().data(), documents().size() * sizeof(int64_t));
  file_.overwrite(0, {reinterpret_cast<const char*>(&header), sizeof header});
  file_.commit();
}

void MemoryTokens::write(const std::vector<int32_t>& tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

std::shared_ptr<TokenFile> MemoryTokens::finish() {
  return std::make_shared<HeldTokens>(std::move(tokens_), documents(), vocabulary_);
}

}  // namespace cortado
