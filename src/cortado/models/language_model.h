// The language model: a backbone that reads tokens, and a head that gives every token of the vocabulary a logit.
#pragma once

#include "cortado/models/backbone.h"

namespace cortado {

// Tokens of a prompt that are read at a time: bounds the memory.
inline constexpr int64_t kReadChunk = 512;

class LanguageModel : public Backbone {
 public:
  // Random weights from torch's default generator. config.vocabulary must be set.
  explicit LanguageModel(ModelConfig config);

  // tokens int64 [B, T] -> logits [B, T, vocabulary]: hidden(), and on it the head. Generation needs only the last
  // position's logits.
  Tensor forward(const Tensor& tokens, const Batch& batch = {}, ModelState* state = nullptr);
  Tensor logits(const Tensor& hidden) const;

  // Mean cross-entropy in nats a token; targets int64 [B, T], below 0 = not counted (-1, or -100 as data sets of tasks
  // have it). Float32 whatever the weights' type.
  Tensor loss(const Tensor& tokens, const Tensor& targets, const Batch& batch = {});
  // The same, of the hidden vectors [B, T, D].
  Tensor loss_of(const Tensor& hidden, const Tensor& targets) const;

  double flops_per_token(int64_t depth) const override;

 private:
  Tensor loss_by_logits(const Tensor& hidden, const Tensor& targets) const;
  std::optional<Tensor> head_bias() const;

  std::shared_ptr<Linear> head_;  // when not tied
  Tensor tied_bias_;              // the head's bias when tied
};

}  // namespace cortado
