// The classifier: a backbone, one vector per sequence, and one logit per class.
#pragma once

#include "cortado/models/backbone.h"

namespace cortado {

// One vector per sequence, [rows, D], from hidden vectors [B, T, D], dense or packed: the mean over its tokens, or its
// first token's. Packed batches contain no padding. Throws InputError for an empty sequence.
Tensor pooled(const Tensor& hidden, const Batch& batch, Pooling pooling);

// With "pooling": "class" a learned vector without a position of its own precedes each sequence, and its output is
// used. With "head": {"type": "pairs"} rows 2i and 2i + 1 of the batch are a pair (two towers with shared weights), and
// the classes see their concatenated vectors. "hidden" adds a GELU layer before the classes.
//
// Sequences of different lengths must be packed (nn/batch.h: pack_padded).
class Classifier : public Backbone {
 public:
  explicit Classifier(ModelConfig config);

  // Maps inputs (as in Backbone) to logits [N, classes]; N is the number of rows, or of pairs.
  Tensor forward(const Tensor& inputs, const Batch& batch = {}) const;
  // Mean cross-entropy in nats; labels int64 [N]. Computed in float32 or float64.
  Tensor loss(const Tensor& inputs, const Tensor& labels, const Batch& batch = {}) const;

 private:
  Tensor first_;  // [D], with "pooling": "class"
  std::shared_ptr<Linear> hidden_, classes_;
};

}  // namespace cortado
