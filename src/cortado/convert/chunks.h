// The text that a conversion learns from: chunks of a fixed length.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/random.h"
#include "cortado/data/token_file.h"

namespace cortado {

using at::Tensor;

// A text's tokens cut into chunks of `length`, side by side; the tail is dropped. The first `held_out` chunks are for
// evaluation, the others for training, each once an epoch, in an order that is a pure function of (seed, epoch).
class Chunks {
 public:
  // Too short a text: InputError that says how long it is.
  Chunks(std::shared_ptr<const TokenFile> tokens, int64_t length, int64_t held_out, uint64_t seed);

  int64_t length() const { return length_; }
  int64_t held_out() const { return held_out_; }
  int64_t training() const { return count_ - held_out_; }  // chunks

  // int64 [rows, length]: the `index`-th batch of training.
  Tensor batch(int64_t index, int64_t rows) const;
  // [1, length], 0 <= index < held_out().
  Tensor held_out_chunk(int64_t index) const { return chunk(index).unsqueeze(0); }

  std::string fingerprint() const { return cortado::fingerprint(*tokens_); }

 private:
  Tensor chunk(int64_t place) const { return tokens_->read(place * length_, length_); }
  int64_t training_place(int64_t number) const;

  std::shared_ptr<const TokenFile> tokens_;
  int64_t length_, held_out_, count_;
  RandomStream random_;
  mutable std::vector<int64_t> order_;
  mutable int64_t order_epoch_ = -1;
};

}  // namespace cortado
