// Tokens into batches: random crops and packed documents.
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

// targets[b, t] is the token after tokens[b, t]; both int64 [B, T] on the CPU. cu_seqlens (int64 [N+1], see
// nn/batch.h): the batch is packed, B = 1.
struct TrainingBatch {
  at::Tensor tokens, targets;
  std::optional<at::Tensor> cu_seqlens;
};

// Where the next row of packed documents begins.
struct PackedPosition {
  int64_t epoch = 0;
  int64_t document = 0;  // its place in the epoch's order
  int64_t offset = 0;    // in the document
  bool operator==(const PackedPosition&) const = default;
};

// How far a run has read: all that going on needs.
struct DataPosition {
  int64_t batches = 0;    // read so far: with the seed, all that a task needs that draws its batches
  PackedPosition packed;  // where the next packed batch begins

  void fields(JsonFields& json);
};

// Tells other data on resuming.
struct DataIdentity {
  int64_t tokens = 0;       // or examples, in the whole split; 0: drawn without end
  std::string fingerprint;  // of what the split holds, or of what draws it
};

// What comes next is a pure function of the seed and the position.
class BatchSource {
 public:
  explicit BatchSource(std::shared_ptr<const TokenFile> tokens) : tokens_(std::move(tokens)) {}
  virtual ~BatchSource() = default;
  // Reads the batch at the position and moves that on.
  virtual TrainingBatch next(DataPosition& position) = 0;
  DataIdentity identity() const { return {tokens_->size(), fingerprint(*tokens_)}; }

 protected:
  std::shared_ptr<const TokenFile> tokens_;
};

// nanoGPT's batches: `rows` crops of `length` tokens at offsets that are a pure function of (seed, step, row).
class RandomCrops : public BatchSource {
 public:
  // A text shorter than one crop (length + 1 tokens): InputError that says how long both are.
  RandomCrops(std::shared_ptr<const TokenFile> tokens, int64_t rows, int64_t length, uint64_t seed);
  TrainingBatch next(DataPosition& position) override { return batch(position.batches++); }
  TrainingBatch batch(int64_t step) const;
  int64_t offset(int64_t step, int64_t row) const;

 private:
  int64_t rows_, length_;
  RandomStream random_;
};

// Documents one after the other in rows of exactly `size` tokens, no document cut off from its end: what does not fit
// goes on in the next row, as a sequence of its own. Sequences have at most `longest` tokens. In every epoch each
// document comes once, in an order that is a pure function of (seed, epoch). Documents of one token have nothing to
// predict and are left out.
class PackedDocuments : public BatchSource {
 public:
  // No document of two tokens or more: InputError.
  PackedDocuments(std::shared_ptr<const TokenFile> tokens, int64_t size, int64_t longest, uint64_t seed);

  using Position = PackedPosition;
  // tokens, targets [1, size]; moves the position on. A position beyond the data: InputError.
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
  std::vector<int64_t> usable_;  // documents of two tokens or more
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace cortado
