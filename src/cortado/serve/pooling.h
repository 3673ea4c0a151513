// A text as one vector, pooled over its tokens' hidden states while it is read.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace cortado {

// The mean of the hidden states, the last token's, or the first token's.
enum class TextPooling { kMean, kLast, kFirst };

class PooledText {
 public:
  explicit PooledText(TextPooling how) : how_(how) {}

  // hidden [tokens, D]: of the next tokens.
  void add(const at::Tensor& hidden) {
    const at::Tensor wide = hidden.to(at::kFloat);
    tokens_ += wide.size(0);
    if (how_ == TextPooling::kLast) {
      vector_ = wide[-1];
    } else if (how_ == TextPooling::kFirst) {
      vector_ = vector_.defined() ? vector_ : wide[0];
    } else {
      vector_ = vector_.defined() ? vector_ + wide.sum(0) : wide.sum(0);
    }
  }

  std::vector<float> numbers() const {
    const at::Tensor pooled = how_ == TextPooling::kMean ? vector_ / tokens_ : vector_;
    const at::Tensor plain = pooled.to(at::kCPU).contiguous();
    const auto* data = plain.const_data_ptr<float>();
    return {data, data + plain.numel()};
  }

 private:
  TextPooling how_;
  at::Tensor vector_;  // [D]; the mean's is a sum
  int64_t tokens_ = 0;
};

}  // namespace cortado
