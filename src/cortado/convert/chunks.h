// What a conversion learns from: chunks of a fixed length.
#pragma once

#include <memory>
#include <string>

#include "cortado/base/random.h"
#include "cortado/data/instructions.h"
#include "cortado/data/token_file.h"
#include "cortado/primitives/types.h"

namespace cortado {

// int64 [rows, length] both.
struct Sequences {
  Tensor tokens;
  Tensor targets;  // each token's next one; -1: does not count, as the last one's, which is not in the chunk
};

// Tokens cut into chunks of `length`, side by side; the tail is dropped. The first ones are for evaluation, the others
// for training, each once an epoch, in an order that is a pure function of (seed, epoch).
class Chunks {
 public:
  // A text, every token of which counts; its first `held_out` chunks are for evaluation. Too short a text: InputError
  // that says how long it is.
  Chunks(std::shared_ptr<const TokenFile> tokens, int64_t length, int64_t held_out, uint64_t seed);
  // Instructions one after the other, of which only the answers count; the first `held_out` examples are for evaluation
  // (their chunks begin anew behind them), and chunks without an answer are left out. Too few: InputError.
  Chunks(const std::vector<Instruction>& examples, const Tokenizer& tokenizer, int64_t length, int64_t held_out,
         uint64_t seed, bool progress = false);

  int64_t length() const { return length_; }
  int64_t held_out() const { return held_out_; }
  int64_t training() const { return count_ - held_out_; }  // chunks

  // The `index`-th batch of training.
  Sequences batch(int64_t index, int64_t rows) const;
  // One row, 0 <= index < held_out().
  Sequences held_out_chunk(int64_t index) const { return read({index}); }

  const std::string& fingerprint() const { return fingerprint_; }

 private:
  Sequences read(const std::vector<int64_t>& places) const;
  int64_t training_place(int64_t number) const;

  std::shared_ptr<const TokenFile> tokens_;
  std::vector<bool> counted_;    // of all tokens, whether one that is a target counts; empty: they do
  std::vector<int64_t> begins_;  // where chunks lie; empty: side by side from the first token
  std::string fingerprint_;
  int64_t length_, held_out_, count_ = 0;
  RandomStream random_;
  mutable std::vector<int64_t> order_;
  mutable int64_t order_epoch_ = -1;
};

}  // namespace cortado
