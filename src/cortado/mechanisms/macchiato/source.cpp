#include "cortado/mechanisms/macchiato/source.h"

#include "cortado/mechanisms/heads.h"
#include "cortado/mechanisms/sequences.h"
#include "cortado/nn/initialization.h"
#include "cortado/primitives/short_conv/op.h"

namespace cortado {
namespace {

// Every sequence of the batch backwards in time.
Tensor reverse_time(const Tensor& x, const Batch& batch) {
  if (!batch.cu_seqlens) return x.flip(1);
  const Tensor bounds = batch.cu_seqlens->to(at::kLong), sequence = sequence_numbers(bounds, x);
  const Tensor from = bounds.index_select(0, sequence), to = bounds.index_select(0, sequence + 1);
  return x.index_select(1, from + to - 1 - at::arange(x.size(1), bounds.options()));
}

}  // namespace

Source::Source(SourceKind kind, int64_t dim, int64_t heads, int64_t taps, bool causal)
    : torch::nn::Module("Source"), kind_(kind), dim_(dim), taps_(taps), causal_(causal) {
  if (kind == SourceKind::kConv) {
    taps_weight_ = register_parameter("taps", at::empty({dim, taps}));
    lecun_normal(taps_weight_, taps);
  }
  if (kind == SourceKind::kRgLru) {
    rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(dim, heads));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(dim));
  }
}

Tensor Source::convolve(const Tensor& x, const Batch& batch, SequenceState* state) const {
  const std::optional<Tensor> tail = state ? std::optional<Tensor>(state->at("source_tail")) : std::nullopt;
  auto [y, last] = short_conv(x, taps_weight_, {}, "none", tail, batch.cu_seqlens);
  if (state) state->at("source_tail") = last;
  if (causal_) return y;
  const Tensor back = std::get<0>(short_conv(reverse_time(x, batch), taps_weight_, {}, "none", {}, batch.cu_seqlens));
  return y + reverse_time(back, batch);
}

Tensor Source::forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
  if (kind_ == SourceKind::kX) return x;
  if (kind_ == SourceKind::kConv) return convolve(x, batch, state);
  if (!causal_) return norm_->forward(rg_lru_->bidirectional(x, batch));
  if (!state) return norm_->forward(std::get<0>(rg_lru_->forward(x, batch)));
  auto [h, last] = rg_lru_->forward(x, batch, state->at("position"), state->at("source_h"));
  state->at("source_h") = last;
  return norm_->forward(h);
}

Tensor Source::reference(const Tensor& x) const {
  if (kind_ == SourceKind::kX) return x;
  if (kind_ == SourceKind::kRgLru) return norm_->forward(rg_lru_->reference(x, causal_));
  const Tensor y = std::get<0>(short_conv_reference(x, taps_weight_));
  return causal_ ? y : y + std::get<0>(short_conv_reference(x.flip(1), taps_weight_)).flip(1);
}

void Source::add_state(SequenceState& state, int64_t rows, const at::TensorOptions& options) const {
  const auto wide = scan_options(options);
  if (kind_ == SourceKind::kConv) state.add("source_tail", at::zeros({rows, taps_ - 1, dim_}, wide));
  if (kind_ == SourceKind::kRgLru) state.add("source_h", at::zeros({rows, dim_}, wide));
}

int64_t Source::state_bytes() const {
  const int64_t floats = kind_ == SourceKind::kConv ? (taps_ - 1) * dim_ : kind_ == SourceKind::kRgLru ? dim_ : 0;
  return floats * 4;
}

double Source::flops_per_token() const {
  if (kind_ == SourceKind::kConv) return 2.0 * static_cast<double>(taps_ * dim_);
  return kind_ == SourceKind::kRgLru ? rg_lru_->flops_per_token() : 0.0;
}

}  // namespace cortado
