#include "cortado/mechanisms/lolcats/op.h"

namespace cortado {

Tensor lolcats_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& phi_q, const Tensor& phi_k,
                         const Tensor& window_factor, const LolcatsRule& rule) {
  const int64_t tokens = q.size(1), w = rule.window;
  const double scale = rule.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const Tensor i = at::arange(tokens, q.options().dtype(at::kLong)).unsqueeze(1), j = i.transpose(0, 1);
  const Tensor seen = j <= i;
  const Tensor recent =
      rule.layout == LolcatsLayout::kSliding ? i - j < w : at::floor_divide(j, w) >= at::floor_divide(i, w) - 1;
  const Tensor near = seen & recent, far = seen & ~recent;
  Tensor scores = at::einsum("bihk,bjhk->bhij", {q, k}) * scale;
  if (rule.softcap) scores = at::tanh(scores / *rule.softcap) * *rule.softcap;
  const Tensor products = at::einsum("bihf,bjhf->bhij", {phi_q, phi_k});
  const Tensor g = window_factor.sigmoid().unsqueeze(1).unsqueeze(2);  // [H,1,1]
  if (rule.mixture == LolcatsMixture::kLolcats) {
    const Tensor hidden = scores.masked_fill(~near, -kInfinity);
    const Tensor c = std::get<0>(hidden.max(-1, true));
    const Tensor weights = g * (hidden - c).exp() + products.masked_fill(~far, 0);
    return at::einsum("bhij,bjhv->bihv", {weights / weights.sum(-1, true), v});
  }
  // Uses logs of the weights e^s, φφ and of their gates, so that nothing overflows.
  Tensor log_near = scores, log_far = products.masked_fill(~far, 1).log();
  if (rule.mixture == LolcatsMixture::kGated) {
    log_near = log_near + g.log();
    log_far = log_far + (1 - g).log();
  }
  const Tensor logs = at::where(near, log_near, log_far.masked_fill(~far, -kInfinity));
  return at::einsum("bhij,bjhv->bihv", {at::softmax(logs, -1), v});
}

}  // namespace cortado
