#include "cortado/primitives/common.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/latte_scan/op.h"
#include "cortado/primitives/time_softmax/op.h"

namespace cortado {

LatteResult latte_scan_reference(const Tensor& query, const Tensor& key_logits, const Tensor& v, bool softmax,
                                 const LatteState& start, const OptionalTensor& cu_seqlens) {
  const int64_t state_heads = std::max(key_logits.size(2), v.size(2)), heads = std::max(query.size(2), state_heads);
  const TimeSoftmax keys =
      time_softmax_reference(expand_heads(key_logits, state_heads), start.normalizer, start.maximum, cu_seqlens);
  const Tensor alpha = expand_heads(keys.normalizer, heads), nothing = alpha == 0;
  const Tensor p = expand_heads(softmax ? at::softmax(query, -1) : query, heads);
  const Tensor reads = (p / alpha.masked_fill(nothing, 1)).masked_fill(nothing, 0);
  const auto [o, state] =
      gated_scan_reference(reads, keys.keys, v, keys.gate, "key", 1.0, {}, start.state, cu_seqlens, false);
  return {o, state, keys.last_normalizer, keys.last_maximum};
}

}  // namespace cortado
