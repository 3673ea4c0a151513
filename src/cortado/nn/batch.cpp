#include "cortado/nn/batch.h"

#include "cortado/base/error.h"
#include "cortado/parallel/sequence_parts.h"

namespace cortado {

Tensor Batch::positions(const Tensor& x, const OptionalTensor& start) const {
  const auto options = at::TensorOptions().dtype(at::kLong).device(x.device());
  const int64_t tokens = x.size(1);
  if (!cu_seqlens && start && tokens == 1) return start->unsqueeze(1);
  const Tensor count = at::arange(tokens, options);
  if (!cu_seqlens) {
    if (!start) return count.unsqueeze(0).expand({x.size(0), tokens});
    return start->unsqueeze(1) + count.unsqueeze(0);
  }
  // The tokens of sequence n are shifted by start[n] - cu_seqlens[n].
  const Tensor bounds = cu_seqlens->to(options);
  Tensor shift = -bounds.slice(0, 0, -1);
  if (start) shift = shift + *start;
  return (count + shift.repeat_interleave(bounds.diff(), 0, tokens)).unsqueeze(0);
}

OptionalTensor Batch::tail_before(const Tensor& x, const OptionalTensor& start) const {
  if (!parts || !start) return start;
  const int64_t count = start->size(1);
  return parts->tail_before(x.slice(1, x.size(1) - count).to(start->scalar_type()), *start);
}

Tensor Batch::lengths(const Tensor& x) const {
  const auto options = at::TensorOptions().dtype(at::kLong).device(x.device());
  if (!cu_seqlens) return at::full({x.size(0)}, x.size(1), options);
  return cu_seqlens->to(options).diff();
}

Packed pack_padded(const Tensor& tokens, const Tensor& lengths) {
  fail_input_if(tokens.dim() < 2 || lengths.dim() != 1 || lengths.size(0) != tokens.size(0),
                "[pack_padded] expected tokens [B, T] or numbers [B, T, C] and lengths [B], got ", tokens.sizes(),
                " and ", lengths.sizes());
  const Tensor counts = lengths.to(tokens.device(), at::kLong);
  if (counts.numel() > 0) {
    const int64_t low = counts.min().item<int64_t>();
    const int64_t high = counts.max().item<int64_t>();
    fail_input_if(low < 0 || high > tokens.size(1), "[pack_padded] lengths must lie in 0..", tokens.size(1), ", got ",
                  low < 0 ? low : high);
  }
  const Tensor valid = at::arange(tokens.size(1), counts.options()).unsqueeze(0) < counts.unsqueeze(1);
  Packed packed;
  packed.tokens = tokens.index({valid}).unsqueeze(0);
  packed.batch.cu_seqlens = at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)});
  return packed;
}

Tensor last_of_each(const Tensor& packed, const Batch& batch) {
  if (!batch.cu_seqlens) return packed.select(1, -1);
  const Tensor bounds = batch.cu_seqlens->to(packed.device(), at::kLong);
  fail_input_if((bounds.diff() <= 0).any().item<bool>(), "[last_of_each] an empty sequence has no last token");
  return packed.squeeze(0).index_select(0, bounds.slice(0, 1) - 1);
}

}  // namespace cortado
