#include <cstring>

#include "cortado/base/error.h"
#include "cortado/tokenizers/bpe/imports.h"

namespace cortado {
namespace {

// Reads a protocol-buffer message field by field. Each length is checked against the bytes that are left.
class Message {
 public:
  Message(std::string_view bytes, const std::string& path) : rest_(bytes), path_(path) {}

  // Reads the next field: its number into `field`, its value into `number` or `bytes`. Returns false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field = tag >> 3;
    number = 0;
    bytes = {};
    const uint64_t type = tag & 7;
    if (type == 0) number = varint();
    if (type == 1) take(8);
    if (type == 2) take(varint());
    if (type == 5) take(4);
    if (type > 2 && type != 5) damaged();
    return true;
  }

  float real() const {
    float value = 0;
    if (bytes.size() != sizeof value) damaged();
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  // The value as a token id; nullopt if it is negative or too large.
  std::optional<int32_t> id() const {
    const auto value = static_cast<int64_t>(number);
    return value >= 0 && value <= kMostTokens ? std::optional(static_cast<int32_t>(value)) : std::nullopt;
  }
  Message inner() const { return {bytes, path_}; }

  uint64_t field = 0;
  uint64_t number = 0;
  std::string_view bytes;

 private:
  [[noreturn]] void damaged() const {
    throw InputError(concat("[", path_, "] is damaged, or not a SentencePiece model"));
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) damaged();
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }

  void take(uint64_t count) {
    if (count > rest_.size()) damaged();
    bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  std::string_view rest_;
  const std::string& path_;
};

// The field numbers come from sentencepiece_model.proto.
void read_piece(Message piece, VocabularyMetadata& metadata) {
  std::string text;
  float score = 0;
  int32_t type = 1;
  while (piece.next()) {
    if (piece.field == 1) text = piece.bytes;
    if (piece.field == 2) score = piece.real();
    if (piece.field == 3) type = static_cast<int32_t>(piece.number & 0xFF);
  }
  metadata.tokens.push_back(std::move(text));
  metadata.scores.push_back(score);
  metadata.types.push_back(type);
}

void read_trainer(Message trainer, const std::string& path, VocabularyMetadata& metadata) {
  uint64_t kind = 1;
  while (trainer.next()) {
    if (trainer.field == 3) kind = trainer.number;
    if (trainer.field == 40) metadata.unknown = trainer.id();
    if (trainer.field == 41) metadata.begin = trainer.id().value_or(-1);
    if (trainer.field == 42) metadata.end = trainer.id().value_or(-1);
    if (trainer.field == 43) metadata.padding = trainer.id();
    fail_input_if(trainer.field == 24 && trainer.number != 0, "[", path,
                  "] has its spaces after the words, which is not supported");
  }
  constexpr const char* kKinds[] = {"unknown", "unigram", "BPE", "word", "character"};
  fail_input_if(kind != 2, "[", path, "] is a SentencePiece model of the kind ", kKinds[kind < 5 ? kind : 0],
                ": only BPE is supported");
}

void read_normalizer(Message normalizer, const std::string& path, VocabularyMetadata& metadata) {
  metadata.remove_extra_spaces = true;
  while (normalizer.next()) {
    fail_input_if(normalizer.field == 2 && !normalizer.bytes.empty(), "[", path,
                  "] normalises the text by a table of its own, which is not supported");
    if (normalizer.field == 3) metadata.add_space = normalizer.number != 0;
    if (normalizer.field == 4) metadata.remove_extra_spaces = normalizer.number != 0;
    fail_input_if(normalizer.field == 5 && normalizer.number == 0, "[", path,
                  "] keeps spaces as they are, which is not supported");
  }
}

}  // namespace

VocabularyMetadata read_sentencepiece_model(const std::string& bytes, const std::string& path) {
  VocabularyMetadata metadata;
  metadata.model = "llama";
  Message model(bytes, path);
  bool trainer = false;
  while (model.next()) {
    if (model.field == 1) read_piece(model.inner(), metadata);
    if (model.field == 2) read_trainer(model.inner(), path, metadata);
    if (model.field == 3) read_normalizer(model.inner(), path, metadata);
    trainer |= model.field == 2;
  }
  fail_input_if(!trainer || metadata.tokens.empty(), "[", path, "] is damaged, or not a SentencePiece model");
  return metadata;
}

}  // namespace cortado
