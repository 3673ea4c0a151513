#include <cmath>

#include "cortado/mechanisms/luna/mixer.h"
#include "cortado/mechanisms/shared/latents.h"

namespace cortado {

// Eq. 24-26 token by token: for each t the sums over s <= t written out.
Tensor LunaMixer::reference_causal(const Tensor& q, const Tensor& k, const Tensor& v) const {
  const double root = std::sqrt(static_cast<double>(head_dim_));
  const Tensor scores = at::einsum("hld,bshd->bhls", {latent_queries(), k}) / root;
  const Tensor a = (1 + (at::elu(scores) + 1).exp()).log();
  // Where softplus is the identity, to rounding, its exponential may overflow.
  const Tensor weights = at::where(scores > 30, scores + 1, a);
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < q.size(1); ++t) {
    const double count = static_cast<double>(t + 1);
    const Tensor past = weights.narrow(3, 0, t + 1);
    const Tensor keys = at::einsum("bhls,bshd->bhld", {past, k.narrow(1, 0, t + 1)}) / count;
    const Tensor values = at::einsum("bhls,bshd->bhld", {past, v.narrow(1, 0, t + 1)}) / count;
    const Tensor b = at::softmax(at::einsum("bhd,bhld->bhl", {q.select(1, t), keys}) / root, -1);
    outputs.push_back(at::einsum("bhl,bhld->bhd", {b, values}));
  }
  return at::stack(outputs, 1);
}

Tensor LunaMixer::reference(const Tensor& x) {
  const Tensor q = split_heads(q_->forward(x), heads_), k = split_heads(k_->forward(x), heads_);
  const Tensor v = split_heads(v_->forward(x), heads_);
  if (causal_) return o_->forward(merge_heads(reference_causal(q, k, v)));
  const Tensor p = split_heads(p_->forward(latents_p_), heads_).unsqueeze(0);
  const Tensor y = merge_heads(attention_reference(p.expand({x.size(0), -1, -1, -1}), k, v));
  return o_->forward(merge_heads(
      attention_reference(q, split_heads(k_latent_->forward(y), heads_), split_heads(v_latent_->forward(y), heads_))));
}

}  // namespace cortado
