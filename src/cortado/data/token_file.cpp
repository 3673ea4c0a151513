#include "cortado/data/token_file.h"

#include <bit>
#include <cstring>

#include "cortado/base/error.h"
#include "cortado/base/hash.h"

namespace cortado {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

TokenFileHeader read_header(const MappedFile& file, const std::string& path) {
  TokenFileHeader header{};
  fail_input_if(file.size() < sizeof header, "[", path, "] is not a token file: too short");
  std::memcpy(&header, file.data(), sizeof header);
  fail_input_if(std::memcmp(header.magic, kTokenFileMagic, sizeof header.magic) != 0, "[", path,
                "] is not a token file");
  fail_input_if(header.hash != header_hash(header), "[", path, "] is damaged: the header's checksum is wrong");
  fail_input_if(header.version != kTokenFileVersion, "[", path, "] is a token file of version ", header.version,
                "; this program reads version ", kTokenFileVersion);
  // Guards the sums below against overflow; no real file is that large.
  constexpr uint64_t kMost = uint64_t{1} << 56;
  fail_input_if((header.token_bytes != 2 && header.token_bytes != 4) || header.tokens > kMost ||
                    header.documents > header.tokens || header.vocabulary == 0 || header.vocabulary > kMost,
                "[", path, "] is damaged: impossible sizes in the header");
  const uint64_t expected =
      sizeof header + padded(header.tokens * header.token_bytes) + header.documents * sizeof(uint64_t);
  fail_input_if(file.size() != expected, "[", path, "] is ", file.size() < expected ? "truncated" : "damaged",
                ": expected ", expected, " bytes, got ", file.size());
  return header;
}

std::vector<int64_t> read_documents(const MappedFile& file, const TokenFileHeader& header, const std::string& path) {
  std::vector<int64_t> documents(header.documents);
  const size_t bytes = documents.size() * sizeof(int64_t);
  if (bytes > 0) std::memcpy(documents.data(), file.data() + file.size() - bytes, bytes);
  bool good = documents.empty() == (header.tokens == 0);
  for (size_t i = 0; good && i < documents.size(); ++i) {
    good = i == 0 ? documents[i] == 0
                  : documents[i] > documents[i - 1] && documents[i] < static_cast<int64_t>(header.tokens);
  }
  fail_input_if(!good, "[", path, "] is damaged: the offsets of the documents are wrong");
  return documents;
}

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

std::shared_ptr<TokenFile> TokenFile::open(const std::string& path) {
  const auto map = std::make_shared<const MappedFile>(path);
  const TokenFileHeader header = read_header(*map, path);
  const auto tokens = at::from_blob(
      const_cast<std::byte*>(map->data()) + sizeof header, {static_cast<int64_t>(header.tokens)}, [map](void*) {},
      header.token_bytes == 2 ? at::kUInt16 : at::kUInt32);
  return std::make_shared<TokenFile>(tokens, read_documents(*map, header, path),
                                     static_cast<int64_t>(header.vocabulary), path);
}

TokenFile::TokenFile(at::Tensor tokens, std::vector<int64_t> documents, int64_t vocabulary, std::string name)
    : tokens_(std::move(tokens)), documents_(std::move(documents)), vocabulary_(vocabulary), name_(std::move(name)) {}

at::Tensor TokenFile::read(int64_t begin, int64_t count) const {
  fail_input_if(begin < 0 || count < 0 || begin > size() - count, "[", name_, "] has ", size(), " tokens; asked for ",
                count, " from ", begin);
  const at::Tensor found = tokens_.narrow(0, begin, count).to(at::kLong);
  if (count == 0) return found;
  // A token outside the vocabulary would index beyond the embedding.
  const auto [low, high] = at::aminmax(found);
  if (low.item<int64_t>() >= 0 && high.item<int64_t>() < vocabulary_) return found;
  const int64_t bad = found.lt(0).logical_or(found.ge(vocabulary_)).nonzero()[0].item<int64_t>();
  throw InputError(concat("[", name_, "] is damaged: token ", found[bad].item<int64_t>(), " at ", begin + bad,
                          " is not in the vocabulary of ", vocabulary_));
}

std::shared_ptr<TokenFile> tokens_in_memory(const at::Tensor& tokens, std::vector<int64_t> documents) {
  fail_input_if(tokens.dim() != 1 || tokens.scalar_type() != at::kLong, "[data] tokens must be int64 [T]");
  const int64_t vocabulary = tokens.numel() > 0 ? tokens.max().item<int64_t>() + 1 : 1;
  return std::make_shared<TokenFile>(tokens, std::move(documents), vocabulary);
}

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
  const auto held = std::make_shared<std::vector<int32_t>>(std::move(tokens_));
  const auto tokens = at::from_blob(held->data(), {static_cast<int64_t>(held->size())}, [held](void*) {}, at::kInt);
  return std::make_shared<TokenFile>(tokens, documents(), vocabulary_);
}

}  // namespace cortado
