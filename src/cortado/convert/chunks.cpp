#include "cortado/convert/chunks.h"

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"

namespace cortado {

Chunks::Chunks(std::shared_ptr<const TokenFile> tokens, int64_t length, int64_t held_out, uint64_t seed)
    : tokens_(std::move(tokens)),
      fingerprint_(cortado::fingerprint(*tokens_)),
      length_(length),
      held_out_(held_out),
      count_(tokens_->size() / length),
      random_(seed, "conversion chunks") {
  fail_input_if(training() < 1, "[data] the text has ", with_commas(tokens_->size()), " tokens, but ",
                with_commas(held_out), " chunks of ", with_commas(length), " to evaluate on and one to train on need ",
                with_commas((held_out + 1) * length));
}

Chunks::Chunks(const std::vector<Instruction>& examples, const Tokenizer& tokenizer, int64_t length, int64_t held_out,
               uint64_t seed, bool progress)
    : length_(length), random_(seed, "conversion chunks") {
  std::vector<int64_t> tokens;
  const auto cut = [&](int64_t begin) {  // cuts the tokens from `begin` on into chunks
    for (; begin + length <= static_cast<int64_t>(tokens.size()); begin += length) {
      const auto first = counted_.begin() + begin;
      if (std::find(first + 1, first + length, true) != first + length) begins_.push_back(begin);
    }
    return static_cast<int64_t>(begins_.size());
  };
  held_out_ = 0;
  int64_t evaluated = 0;  // tokens of the examples for evaluation
  const auto count = static_cast<int64_t>(examples.size());
  ProgressBar bar({.label = "tokens", .total = count, .unit = "examples", .quiet = !progress});
  for (int64_t i = 0; i < count; ++i) {
    bar.update(i);
    if (i == held_out) {
      held_out_ = cut(0);
      evaluated = static_cast<int64_t>(tokens.size());
    }
    const InstructionTokens encoded = encode_instruction(tokenizer, examples[static_cast<size_t>(i)]);
    tokens.insert(tokens.end(), encoded.tokens.begin(), encoded.tokens.end());
    counted_.insert(counted_.end(), encoded.answer, false);
    counted_.insert(counted_.end(), encoded.tokens.size() - encoded.answer, true);
  }
  count_ = cut(evaluated);
  fail_input_if(held_out_ < 1 || training() < 1, "[data] ", with_commas(count), " examples of ",
                with_commas(static_cast<int64_t>(tokens.size())), " tokens are too few: the first ",
                with_commas(held_out), " are to evaluate on, and they and the others need ", with_commas(length),
                " tokens each");
  tokens_ = tokens_in_memory(at::tensor(tokens, at::kLong));
  fingerprint_ = cortado::fingerprint(*tokens_);
}

int64_t Chunks::training_place(int64_t number) const {
  const int64_t epoch = number / training();
  if (order_epoch_ != epoch) {
    order_ = random_.permutation(training(), static_cast<uint64_t>(epoch));
    order_epoch_ = epoch;
  }
  return held_out_ + order_[static_cast<size_t>(number % training())];
}

Sequences Chunks::read(const std::vector<int64_t>& places) const {
  std::vector<Tensor> rows;
  for (const int64_t place : places) {
    const int64_t begin = begins_.empty() ? place * length_ : begins_[static_cast<size_t>(place)];
    rows.push_back(tokens_->read(begin, length_));
  }
  const Tensor tokens = at::stack(rows);
  Tensor targets = at::full_like(tokens, -1);
  targets.narrow(1, 0, length_ - 1).copy_(tokens.narrow(1, 1, length_ - 1));
  if (counted_.empty()) return {tokens, targets};
  for (size_t row = 0; row < places.size(); ++row) {
    const auto counted = counted_.begin() + begins_[static_cast<size_t>(places[row])];
    int64_t* target = targets.mutable_data_ptr<int64_t>() + static_cast<int64_t>(row) * length_;
    for (int64_t t = 0; t + 1 < length_; ++t) {
      if (!counted[t + 1]) target[t] = -1;
    }
  }
  return {tokens, targets};
}

Sequences Chunks::batch(int64_t index, int64_t rows) const {
  std::vector<int64_t> places;
  for (int64_t row = 0; row < rows; ++row) places.push_back(training_place(index * rows + row));
  return read(places);
}

}  // namespace cortado
