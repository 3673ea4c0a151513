#include "cortado/mechanisms/macchiato/source.h"

#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {
namespace {

constexpr const char *kTail = "source_tail", *kHidden = "source_h";

// Reverses every sequence of the batch in time.
Tensor reverse_time(const Tensor& x, const Batch& batch) {
  if (!batch.cu_seqlens) return x.flip(1);
  const Tensor bounds = batch.cu_seqlens->to(at::kLong), sequence = sequence_numbers(bounds, x);
  const Tensor from = bounds.index_select(0, sequence), to = bounds.index_select(0, sequence + 1);
  return x.index_select(1, from + to - 1 - at::arange(x.size(1), bounds.options()));
}

}  // namespace

Source::Source(SourceKind kind, int64_t dim, int64_t heads, int64_t taps, bool identity, bool causal)
    : Module("Source"), kind_(kind), causal_(causal) {
  if (kind == SourceKind::kConv) {
    conv_ = std::make_shared<ShortConvolution>(dim, taps, false, "none");
    if (identity) conv_->start_as_identity();
    register_parameter(conv_->weight, "taps", conv_->weight, Role::kMatrix);
  }
  if (kind == SourceKind::kRgLru) {
    rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(dim, heads));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim));
  }
}

Tensor Source::forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
  if (kind_ == SourceKind::kX) return x;
  if (kind_ == SourceKind::kConv) {
    const Tensor y = conv_->forward(x, batch, state, kTail);
    return causal_ ? y : y + reverse_time(conv_->forward(reverse_time(x, batch), batch, nullptr, kTail), batch);
  }
  if (!causal_) return norm_->forward(rg_lru_->bidirectional(x, batch));
  return norm_->forward(rg_lru_->forward(x, batch, state, kHidden));
}

Tensor Source::reference(const Tensor& x) const {
  if (kind_ == SourceKind::kX) return x;
  if (kind_ == SourceKind::kRgLru) return norm_->forward(rg_lru_->reference(x, causal_));
  const Tensor y = conv_->reference(x);
  return causal_ ? y : y + conv_->reference(x.flip(1)).flip(1);
}

void Source::declare(StateLayout& layout) const {
  if (conv_) conv_->declare(layout, kTail);
  if (rg_lru_) rg_lru_->declare(layout, kHidden);
}

int64_t Source::least_part() const { return conv_ ? conv_->weight.size(1) : 1; }

double Source::flops_per_token() const {
  if (conv_) return 2.0 * static_cast<double>(conv_->weight.numel());
  return rg_lru_ ? rg_lru_->flops_per_token() : 0.0;
}

}  // namespace cortado
