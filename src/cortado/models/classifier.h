// The classifier: a backbone, one vector a sequence, and on it one logit a class.
#pragma once

#include "cortado/models/backbone.h"

namespace cortado {

// One vector a sequence, [rows, D], of hidden vectors [B, T, D], dense or packed: the mean of its tokens, or its first
// one. In a packed batch there is no padding that could be read; an empty sequence is an InputError.
Tensor pooled(const Tensor& hidden, const Batch& batch, Pooling pooling);

// With "pooling": "class" a learned vector stands before each sequence's first token, without a position of its own,
// and is what is read. With "head": {"type": "pairs"} rows 2i and 2i + 1 of the batch are a pair (two towers that share
// their weights), whose vectors the classes see one behind the other. "hidden" puts a GELU layer before the classes.
//
// Sequences of different lengths are packed first (nn/batch.h: pack_padded).
class Classifier : public Backbone {
 public:
  explicit Classifier(ModelConfig config);

  // inputs as of Backbone -> logits [N, classes], N the batch's rows or pairs.
  Tensor forward(const Tensor& inputs, const Batch& batch = {}) const;
  // Mean cross-entropy in nats; labels int64 [N]. Float32 whatever the weights' type.
  Tensor loss(const Tensor& inputs, const Tensor& labels, const Batch& batch = {}) const;

 private:
  Tensor first_;  // [D], with "pooling": "class"
  std::shared_ptr<Linear> hidden_, classes_;
};

}  // namespace cortado
