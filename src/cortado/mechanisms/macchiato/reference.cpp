#include "cortado/mechanisms/macchiato/op.h"

namespace cortado {

Tensor macchiato_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v,
                           const Tensor& window_q, const Tensor& window_k, const WindowAttentionOptions& options) {
  const int64_t latents = key_logits.size(3);
  const Tensor p = at::softmax(query_logits, -1);
  const Tensor local = std::get<0>(window_attention_reference(window_q, window_k, v, options));
  return p.narrow(3, 0, 1) * local + latte_reference(p.narrow(3, 1, latents), key_logits, v, options.causal);
}

}  // namespace cortado
