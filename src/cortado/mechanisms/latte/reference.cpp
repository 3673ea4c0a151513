#include "cortado/mechanisms/latte/op.h"

namespace cortado {

// Row t of p(s|l,t) is a softmax over s <= t: [B,H,L,T,T] in all.
Tensor latte_reference(const Tensor& weights, const Tensor& key_logits, const Tensor& v, bool causal) {
  const int64_t tokens = v.size(1);
  const Tensor theta = key_logits.permute({0, 2, 3, 1}).unsqueeze(3);  // [B,H,L,1,T]
  Tensor scores = theta.expand({-1, -1, -1, tokens, tokens});
  if (causal) {
    const Tensor future = at::ones({tokens, tokens}, v.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  const Tensor p_s = at::softmax(scores, -1).nan_to_num(0.0);  // a row of -inf has seen nothing: o = 0
  const Tensor p_ts = at::einsum("bthl,bhlts->bhts", {weights, p_s});
  return at::einsum("bhts,bshv->bthv", {p_ts, v});
}

Tensor exponential_reference(const Tensor& query_logits, const Tensor& key_logits, const Tensor& v, bool causal) {
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < v.size(1); ++t) {
    const int64_t seen = causal ? t + 1 : v.size(1);
    const Tensor log_weights = (query_logits.narrow(1, t, 1) + key_logits.narrow(1, 0, seen)).logsumexp(-1);  // [B,s,H]
    outputs.push_back(at::einsum("bsh,bshv->bhv", {at::softmax(log_weights, 1), v.narrow(1, 0, seen)}));
  }
  return at::stack(outputs, 1);
}

}  // namespace cortado
