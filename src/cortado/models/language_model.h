// The language model: a backbone that reads tokens, and a head that gives one logit per token of the vocabulary.
#pragma once

#include "cortado/models/backbone.h"

namespace cortado {

// Tokens of a prompt that are read at a time, to bound the memory.
inline constexpr int64_t kReadChunk = 512;

class LanguageModel : public Backbone {
 public:
  // Draws random weights from torch's default generator. config.vocabulary must be set.
  explicit LanguageModel(ModelConfig config);

  // Maps tokens int64 [B, T] to logits [B, T, vocabulary]: hidden(), then the head. Generation needs only the last
  // token's logits.
  Tensor forward(const Tensor& tokens, const Batch& batch = {}, ModelState* state = nullptr);
  Tensor logits(const Tensor& hidden) const;

  // Mean cross-entropy in nats per token. targets int64 [B, T], best on the CPU: reading them on a GPU waits for it.
  // Negative targets are not counted (-1, or -100 as in data sets of tasks). Computed in float32 or float64.
  Tensor loss(const Tensor& tokens, const Tensor& targets, const Batch& batch = {});
  // As loss(), from the hidden vectors [B, T, D].
  Tensor loss_of(const Tensor& hidden, const Tensor& targets) const;

  double flops_per_token(int64_t depth) const override;

 private:
  Tensor loss_by_logits(const Tensor& hidden, const Tensor& targets) const;
  std::optional<Tensor> head_bias() const;

  std::shared_ptr<Linear> head_;  // if not tied
  Tensor tied_bias_;              // the head's bias, if tied
};

}  // namespace cortado
