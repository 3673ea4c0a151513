// Tokens into batches: random crops and packed documents for training, all windows in order for validation.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cortado/base/random.h"
#include "cortado/data/token_file.h"

namespace cortado {

// targets[b, t] is the token after tokens[b, t]; both int64 [B, T] on the CPU. cu_seqlens (int64 [N+1], see
// nn/batch.h): the batch is packed, B = 1.
struct TrainingBatch {
  at::Tensor tokens;
  at::Tensor targets;
  std::optional<at::Tensor> cu_seqlens;
};

// nanoGPT's batches: `rows` crops of `length` tokens at offsets that are a pure function of (seed, step, row).
class RandomCrops {
 public:
  // A text shorter than one crop (length + 1 tokens): InputError that says how long both are.
  RandomCrops(std::shared_ptr<const TokenFile> tokens, int64_t rows, int64_t length, uint64_t seed);
  TrainingBatch batch(int64_t step) const;
  int64_t offset(int64_t step, int64_t row) const;

 private:
  std::shared_ptr<const TokenFile> tokens_;
  int64_t rows_, length_;
  RandomStream random_;
};

// Documents one after the other in rows of exactly `size` tokens, no document cut off from its end: what does not fit
// goes on in the next row, as a sequence of its own. Sequences have at most `longest` tokens. In every epoch each
// document comes once, in an order that is a pure function of (seed, epoch). Documents of one token have nothing to
// predict and are left out.
class PackedDocuments {
 public:
  // No document of two tokens or more: InputError.
  PackedDocuments(std::shared_ptr<const TokenFile> tokens, int64_t size, int64_t longest, uint64_t seed);

  // Where the next row begins: all that a resumed run needs.
  struct Position {
    int64_t epoch = 0;
    int64_t document = 0;  // its place in the epoch's order
    int64_t offset = 0;    // in the document
    bool operator==(const Position&) const = default;
  };
  // tokens, targets [1, size]; moves the position on. A position beyond the data: InputError.
  TrainingBatch next(Position& position);

 private:
  int64_t length_of(int64_t document) const;
  const std::vector<int64_t>& order_of(int64_t epoch);

  std::shared_ptr<const TokenFile> tokens_;
  int64_t size_, longest_;
  RandomStream random_;
  std::vector<int64_t> usable_;  // documents of two tokens or more
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

// Every predictable token of a split once: windows of `length` tokens one after the other, the last one shorter; `rows`
// windows a batch, in the last full batch fewer, and the short window alone.
class SequentialWindows {
 public:
  // Fewer than two tokens: InputError.
  SequentialWindows(std::shared_ptr<const TokenFile> tokens, int64_t rows, int64_t length);
  int64_t batches() const;
  TrainingBatch batch(int64_t index) const;  // 0 <= index < batches()
  int64_t targets() const { return tokens_->size() - 1; }

 private:
  std::shared_ptr<const TokenFile> tokens_;
  int64_t rows_, length_;
};

}  // namespace cortado
