#include "cortado/mechanisms/macchiato/op.h"

namespace cortado {

Tensor macchiato_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v,
                           const Tensor& window_q, const Tensor& window_k, int64_t window, double scale, bool causal) {
  const int64_t latents = key_logits.size(3);
  const Tensor p = at::softmax(query_logits, -1);
  WindowAttentionOptions options;
  options.window = window;
  options.scale = scale;
  options.causal = causal;
  const Tensor local = std::get<0>(window_attention_reference(window_q, window_k, v, options));
  return p.narrow(3, 0, 1) * local + latte_reference(p.narrow(3, 1, latents), key_logits, v, causal);
}

}  // namespace cortado
