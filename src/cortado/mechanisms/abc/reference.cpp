#include "cortado/mechanisms/abc/op.h"

namespace cortado {

Tensor abc_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, double scale) {
  const int64_t tokens = v.size(1);
  const Tensor future = at::ones({tokens, tokens}, v.options().dtype(at::kBool)).triu(1);
  const Tensor logits = s.permute({0, 2, 3, 1}).unsqueeze(3).expand({-1, -1, -1, tokens, -1});  // [B,H,M,T,T]
  const Tensor weights = at::softmax(logits.masked_fill(future, -kInfinity), -1).nan_to_num(0.0);
  const Tensor keys = at::einsum("bhmts,bshk->bthmk", {weights, k});
  const Tensor values = at::einsum("bhmts,bshv->bthmv", {weights, v});
  const Tensor p = at::softmax(at::einsum("bthmk,bthk->bthm", {keys, q}) * scale, -1);
  return at::einsum("bthm,bthmv->bthv", {p, values});
}

}  // namespace cortado
