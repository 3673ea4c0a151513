// Training text of a conversion: chunks of a fixed length.
#pragma once

#include <memory>
#include <string>

#include "cortado/base/random.h"
#include "cortado/data/instructions.h"
#include "cortado/data/token_file.h"
#include "cortado/primitives/types.h"

namespace cortado {

// Tokens and targets, both int64 [rows, length].
struct Sequences {
  Tensor tokens;
  // the next token; -1 where it does not count, and for the last token, whose next one is not in the chunk
  Tensor targets;
};

// Tokens cut into adjacent chunks of `length`; the tail is dropped. The first chunks are for evaluation. The others are
// for training, each once per epoch, in an order that depends on (seed, epoch) only.
class Chunks {
 public:
  // A text, of which every token counts. Its first `held_out` chunks are for evaluation. Throws InputError with the
  // text's length if it is too short.
  Chunks(std::shared_ptr<const TokenFile> tokens, int64_t length, int64_t held_out, uint64_t seed);
  // Instructions one after the other, of which only the answers count. The first `held_out` examples are for
  // evaluation; the training chunks begin after them. Chunks without an answer are dropped. Throws InputError for too
  // few examples.
  Chunks(const std::vector<Instruction>& examples, const Tokenizer& tokenizer, int64_t length, int64_t held_out,
         uint64_t seed, bool progress = false);

  int64_t length() const { return length_; }
  int64_t held_out() const { return held_out_; }
  int64_t training() const { return count_ - held_out_; }  // chunks

  // The training batch number `index`.
  Sequences batch(int64_t index, int64_t rows) const;
  // One row, for 0 <= index < held_out().
  Sequences held_out_chunk(int64_t index) const { return read({index}); }

  const std::string& fingerprint() const { return fingerprint_; }

 private:
  Sequences read(const std::vector<int64_t>& places) const;
  int64_t training_place(int64_t number) const;

  std::shared_ptr<const TokenFile> tokens_;
  std::vector<bool> counted_;    // per token, whether it counts as a target; empty: all do
  std::vector<int64_t> begins_;  // where chunks begin; empty: side by side from the first token
  std::string fingerprint_;
  int64_t length_, held_out_, count_ = 0;
  RandomStream random_;
  mutable std::vector<int64_t> order_;
  mutable int64_t order_epoch_ = -1;
};

}  // namespace cortado
