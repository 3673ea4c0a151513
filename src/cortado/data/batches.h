// Builds batches from tokens: random crops and packed documents.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/fields.h"
#include "cortado/base/random.h"
#include "cortado/data/token_file.h"

namespace cortado {

// A batch for next-token prediction: targets[b, t] is the token after tokens[b, t]. Both are int64 [B, T] on the CPU.
// With cu_seqlens (int64 [N+1], see nn/batch.h), the batch is packed and B = 1.
struct TrainingBatch {
  at::Tensor tokens, targets;
  std::optional<at::Tensor> cu_seqlens;
};

// The position at which the next packed row begins.
struct PackedPosition {
  int64_t epoch = 0;
  int64_t document = 0;  // index in the epoch's order
  int64_t offset = 0;    // in tokens, from the start of the document
  bool operator==(const PackedPosition&) const = default;
};

// How far a run has read its data; a resumed run continues from here.
struct DataPosition {
  int64_t batches = 0;    // batches read so far; with the seed, this is all that a task with random batches needs
  PackedPosition packed;  // where the next packed batch begins

  void fields(JsonFields& json);
};

// Identifies the data, to detect on resuming that it has changed.
struct DataIdentity {
  int64_t tokens = 0;       // tokens or examples in the whole split; 0 if examples are drawn without end
  std::string fingerprint;  // of the split's contents, or of the generator's settings
};

// A source of batches. Each batch is a pure function of the seed and the position.
class BatchSource {
 public:
  explicit BatchSource(std::shared_ptr<const TokenFile> tokens) : tokens_(std::move(tokens)) {}
  virtual ~BatchSource() = default;
  // Reads the batch at the position and advances the position.
  virtual TrainingBatch next(DataPosition& position) = 0;
  DataIdentity identity() const { return {tokens_->size(), fingerprint(*tokens_)}; }

 protected:
  std::shared_ptr<const TokenFile> tokens_;
};

// nanoGPT's batches: `rows` crops of `length` tokens. Offsets are a pure function of (seed, step, row).
class RandomCrops : public BatchSource {
 public:
  // InputError, with both lengths, if the text is shorter than one crop (length + 1 tokens).
  RandomCrops(std::shared_ptr<const TokenFile> tokens, int64_t rows, int64_t length, uint64_t seed);
  TrainingBatch next(DataPosition& position) override { return batch(position.batches++); }
  TrainingBatch batch(int64_t step) const;
  int64_t offset(int64_t step, int64_t row) const;

 private:
  int64_t rows_, length_;
  RandomStream random_;
};

// Packs documents one after the other into rows of exactly `size` tokens. A document that does not fit continues in the
// next row as a new sequence. Sequences have at most `longest` tokens. Each epoch has every document once, in an order
// that is a pure function of (seed, epoch). Documents of one token have no target and are skipped.
class PackedDocuments : public BatchSource {
 public:
  // InputError if no document has at least two tokens.
  PackedDocuments(std::shared_ptr<const TokenFile> tokens, int64_t size, int64_t longest, uint64_t seed);

  using Position = PackedPosition;
  // Returns tokens and targets [1, size], and advances the position. InputError for a position beyond the data.
  TrainingBatch next(Position& position);
  TrainingBatch next(DataPosition& position) override {
    position.batches++;
    return next(position.packed);
  }

 private:
  int64_t length_of(int64_t document) const;
  const std::vector<int64_t>& order_of(int64_t epoch);

  int64_t size_, longest_;
  RandomStream random_;
  std::vector<int64_t> usable_;  // documents with at least two tokens
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace cortado
