#include "cortado/mechanisms/gated_slot/op.h"

namespace cortado {

Tensor gated_slot_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s, const Tensor& g,
                            double scale) {
  const Tensor decay = g.exp();
  Tensor keys = at::zeros({1}, k.options()), values = keys;  // [B,H,M,K], [B,H,M,V]
  std::vector<Tensor> o;
  for (int64_t t = 0; t < q.size(1); ++t) {
    const auto now = [t](const Tensor& x) { return x.select(1, t).unsqueeze(3); };  // [B,H,*,1]
    keys = now(decay) * keys + now(s) * k.select(1, t).unsqueeze(2);
    values = now(decay) * values + now(s) * v.select(1, t).unsqueeze(2);
    const Tensor p = at::softmax(at::matmul(keys, now(q)) * scale, 2);  // [B,H,M,1]
    o.push_back((p * values).sum(2));
  }
  return o.empty() ? v : at::stack(o, 1);
}

}  // namespace cortado
