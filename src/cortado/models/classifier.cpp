#include "cortado/models/classifier.h"

#include <cmath>

#include "cortado/base/error.h"

namespace cortado {
namespace {

// The index of each packed token's sequence, int64 [T].
Tensor sequence_of_each(const Tensor& lengths, int64_t tokens) {
  return at::arange(lengths.size(0), lengths.options()).repeat_interleave(lengths, 0, tokens);
}

// Inserts `first` [D] before every sequence of x [B, T, D], and updates `batch` to match.
Tensor with_first(const Tensor& first, const Tensor& x, Batch& batch) {
  if (!batch.cu_seqlens) return at::cat({first.to(x.scalar_type()).expand({x.size(0), 1, -1}), x}, 1);
  const int64_t tokens = x.size(1);
  const Tensor lengths = batch.lengths(x), place = at::arange(tokens, lengths.options());
  const Tensor whole = first.to(x.scalar_type()).expand({tokens + lengths.size(0), -1});
  batch.cu_seqlens = batch.cu_seqlens->to(lengths.options()) + at::arange(lengths.size(0) + 1, lengths.options());
  return whole.index_copy(0, place + sequence_of_each(lengths, tokens) + 1, x.squeeze(0)).unsqueeze(0);
}

}  // namespace

Tensor pooled(const Tensor& hidden, const Batch& batch, Pooling pooling) {
  const Tensor lengths = batch.lengths(hidden);
  fail_input_if((lengths < 1).any().item<bool>(), "[model] an empty sequence has no class");
  if (!batch.cu_seqlens) return pooling == Pooling::kMean ? hidden.mean(1) : hidden.select(1, 0);
  const Tensor rows = hidden.squeeze(0);
  if (pooling == Pooling::kClass) return rows.index_select(0, batch.cu_seqlens->slice(0, 0, -1).to(lengths.options()));
  const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor sums = at::zeros({lengths.size(0), rows.size(1)}, rows.options().dtype(type))
                          .index_add(0, sequence_of_each(lengths, rows.size(0)), rows.to(type));
  return (sums / lengths.unsqueeze(1)).to(rows.scalar_type());
}

Classifier::Classifier(ModelConfig given) : Backbone("Classifier", std::move(given)) {
  const HeadConfig& head = config().head;
  fail_input_if(head.kind == HeadKind::kLanguage, "[model] \"head\" has no classes: it is a language model's");
  const int64_t width = config().dim * (head.kind == HeadKind::kPairs ? 2 : 1);
  if (head.hidden > 0) hidden_ = register_module("head_hidden", std::make_shared<Linear>(width, head.hidden, true));
  classes_ =
      register_module("head", std::make_shared<Linear>(head.hidden > 0 ? head.hidden : width, head.classes, true));
  if (head.pooling == Pooling::kClass) {
    register_parameter(first_, "first", at::randn({config().dim}) / std::sqrt(static_cast<double>(config().dim)),
                       Role::kEmbedding);
  }
  initialize_weights();
}

Tensor Classifier::forward(const Tensor& inputs, const Batch& batch) const {
  Batch about = batch;
  Tensor x = embed(inputs, batch, nullptr);
  if (first_.defined()) x = with_first(first_, x, about);
  Tensor vectors = pooled(run_blocks(x, about, nullptr), about, config().head.pooling);
  if (config().head.kind == HeadKind::kPairs) {
    fail_input_if(vectors.size(0) % 2 != 0, "[model] expected pairs of sequences, got ", vectors.size(0));
    vectors = vectors.reshape({vectors.size(0) / 2, 2 * config().dim});
  }
  if (hidden_) vectors = at::gelu(hidden_->forward(vectors));
  return classes_->forward(vectors);
}

Tensor Classifier::loss(const Tensor& inputs, const Tensor& labels, const Batch& batch) const {
  const Tensor logits = forward(inputs, batch);
  fail_input_if(labels.dim() != 1 || labels.scalar_type() != at::kLong || labels.size(0) != logits.size(0),
                "[model] expected int64 labels [", logits.size(0), "], got ", c10::toString(labels.scalar_type()), " ",
                labels.sizes());
  if (labels.is_cpu() && labels.numel() > 0) {
    const auto [low, high] = at::aminmax(labels);
    const int64_t worst = low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>();
    fail_input_if(worst < 0 || worst >= config().head.classes, "[model] label ", worst, " is outside the classes 0..",
                  config().head.classes - 1);
  }
  return at::cross_entropy_loss(logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat), labels);
}

}  // namespace cortado
