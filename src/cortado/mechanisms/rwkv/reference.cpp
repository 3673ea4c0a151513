#include "cortado/mechanisms/rwkv/wkv.h"

namespace cortado {

Tensor wkv_reference(const Tensor& k, const Tensor& v, const Tensor& w, const Tensor& u) {
  const int64_t tokens = k.size(1);
  const Tensor place = at::arange(tokens, w.options().requires_grad(false));
  const Tensor age = (place.unsqueeze(1) - 1 - place.unsqueeze(0)).unsqueeze(2);  // t-1-s [T,T,1]
  const Tensor past = k.unsqueeze(1) - age * w, now = (k + u).unsqueeze(1);       // [B,T,T,A], s second
  const Tensor logits = at::where(age == -1, now, past).masked_fill(age < -1, -INFINITY);
  return (at::softmax(logits, 2) * v.unsqueeze(1)).sum(2);
}

}  // namespace cortado
