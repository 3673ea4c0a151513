#include "cortado/mechanisms/linear/op.h"

namespace cortado {

Tensor linear_reference(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double eps, bool normalize) {
  Tensor weights = at::einsum("bthk,bshk->bhts", {q, k});
  if (causal) weights = weights.tril();
  Tensor o = at::einsum("bhts,bshv->bthv", {weights, v});
  if (!normalize) return o;
  const Tensor sums = weights.sum(-1).transpose(1, 2).unsqueeze(3) + eps;  // [B,T,H,1]
  return at::where(sums == 0, at::zeros_like(o), o / sums);
}

}  // namespace cortado
