#include "cortado/data/batches.h"

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
namespace {

void check_sizes(int64_t rows, int64_t length) {
  fail_input_if(rows < 1 || length < 1, "[data] a batch needs at least one row and one token, got ", rows, " x ",
                length);
}

}  // namespace

void DataPosition::fields(JsonFields& json) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  json.integer("batches", batches, 0, kMost);
  json.integer("epoch", packed.epoch, 0, kMost);
  json.integer("document", packed.document, 0, kMost);
  json.integer("offset", packed.offset, 0, kMost);
}

RandomCrops::RandomCrops(std::shared_ptr<const TokenFile> tokens, int64_t rows, int64_t length, uint64_t seed)
    : BatchSource(std::move(tokens)), rows_(rows), length_(length), random_(seed, "random crops") {
  check_sizes(rows, length);
  fail_input_if(tokens_->size() < length + 1, "[data] the text is too short: it has ", tokens_->size(),
                " tokens, one crop needs ", length + 1, " (a context of ", length, " and the token after it)");
}

int64_t RandomCrops::offset(int64_t step, int64_t row) const {
  const auto choices = static_cast<uint64_t>(tokens_->size() - length_);
  return static_cast<int64_t>(random_.below(choices, static_cast<uint64_t>(step), static_cast<uint64_t>(row)));
}

TrainingBatch RandomCrops::batch(int64_t step) const {
  TrainingBatch out{at::empty({rows_, length_}, at::kLong), at::empty({rows_, length_}, at::kLong), std::nullopt};
  for (int64_t row = 0; row < rows_; ++row) {
    const at::Tensor crop = tokens_->read(offset(step, row), length_ + 1);
    out.tokens[row].copy_(crop.narrow(0, 0, length_));
    out.targets[row].copy_(crop.narrow(0, 1, length_));
  }
  return out;
}

PackedDocuments::PackedDocuments(std::shared_ptr<const TokenFile> tokens, int64_t size, int64_t longest, uint64_t seed)
    : BatchSource(std::move(tokens)), size_(size), longest_(longest), random_(seed, "document order") {
  check_sizes(size, longest);
  for (int64_t i = 0; i < static_cast<int64_t>(tokens_->documents().size()); ++i) {
    if (length_of(i) >= 2) usable_.push_back(i);
  }
  fail_input_if(usable_.empty(), "[data] the text is too short: no document has two tokens or more (", tokens_->size(),
                " tokens in ", tokens_->documents().size(), " documents)");
}

int64_t PackedDocuments::length_of(int64_t document) const {
  const auto& starts = tokens_->documents();
  const auto next = static_cast<size_t>(document) + 1;
  return (next < starts.size() ? starts[next] : tokens_->size()) - starts[next - 1];
}

const std::vector<int64_t>& PackedDocuments::order_of(int64_t epoch) {
  if (order_epoch_ != epoch) {
    order_ = random_.permutation(static_cast<int64_t>(usable_.size()), static_cast<uint64_t>(epoch));
    order_epoch_ = epoch;
  }
  return order_;
}

TrainingBatch PackedDocuments::next(Position& position) {
  TrainingBatch out{at::empty({1, size_}, at::kLong), at::empty({1, size_}, at::kLong), std::nullopt};
  const auto count = static_cast<int64_t>(usable_.size());
  fail_input_if(position.epoch < 0 || position.document < 0 || position.document >= count || position.offset < 0,
                "[data] the position (epoch ", position.epoch, ", document ", position.document, ", token ",
                position.offset, ") is not in this text of ", count, " documents: the data has changed");
  std::vector<int64_t> bounds{0};
  while (bounds.back() < size_) {
    const int64_t document =
        usable_[static_cast<size_t>(order_of(position.epoch)[static_cast<size_t>(position.document)])];
    const int64_t left = length_of(document) - 1 - position.offset;  // tokens that have a successor
    fail_input_if(left < 1, "[data] the position is beyond document ", document, ": the data has changed");
    const int64_t filled = bounds.back(), take = std::min({left, longest_, size_ - filled});
    const int64_t begin = tokens_->documents()[static_cast<size_t>(document)] + position.offset;
    const at::Tensor piece = tokens_->read(begin, take + 1);
    out.tokens.narrow(1, filled, take).copy_(piece.narrow(0, 0, take));
    out.targets.narrow(1, filled, take).copy_(piece.narrow(0, 1, take));
    bounds.push_back(filled + take);
    position.offset += take;
    if (take < left) continue;
    position.offset = 0;
    if (++position.document == count) {
      position.document = 0;
      ++position.epoch;
    }
  }
  out.cu_seqlens = at::tensor(bounds, at::kLong);
  return out;
}

}  // namespace cortado
