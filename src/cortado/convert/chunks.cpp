#include "cortado/convert/chunks.h"

#include "cortado/base/error.h"
#include "cortado/base/human.h"

namespace cortado {

Chunks::Chunks(std::shared_ptr<const TokenFile> tokens, int64_t length, int64_t held_out, uint64_t seed)
    : tokens_(std::move(tokens)),
      length_(length),
      held_out_(held_out),
      count_(tokens_->size() / length),
      random_(seed, "conversion chunks") {
  fail_input_if(training() < 1, "[data] the text has ", with_commas(tokens_->size()), " tokens, but ",
                with_commas(held_out), " chunks of ", with_commas(length), " to evaluate on and one to train on need ",
                with_commas((held_out + 1) * length));
}

int64_t Chunks::training_place(int64_t number) const {
  const int64_t epoch = number / training();
  if (order_epoch_ != epoch) {
    order_ = random_.permutation(training(), static_cast<uint64_t>(epoch));
    order_epoch_ = epoch;
  }
  return held_out_ + order_[static_cast<size_t>(number % training())];
}

Tensor Chunks::batch(int64_t index, int64_t rows) const {
  std::vector<Tensor> chunks;
  for (int64_t row = 0; row < rows; ++row) chunks.push_back(chunk(training_place(index * rows + row)));
  return at::stack(chunks);
}

}  // namespace cortado
