#include "cortado/mechanisms/lolcats/parts.h"

namespace cortado {

SoftmaxPart softmax_part(const std::tuple<Tensor, Tensor, Tensor>& attention, at::ScalarType type) {
  const auto& [o, lse, row_max] = attention;
  return {o.to(type), lse.to(type), row_max.to(type)};
}

Tensor join_linear(const SoftmaxPart& near, const Tensor& far, const Tensor& window_factor, LolcatsMixture mixture) {
  const c10::SymInt values = near.o.sym_size(3);
  const Tensor sums = far.narrow_symint(3, 0, values), total = far.narrow_symint(3, values, 1);
  const Tensor lse = near.lse.unsqueeze(3), factor = window_factor.unsqueeze(1);  // [H,1]
  if (mixture == LolcatsMixture::kLolcats) {
    const Tensor weight = factor.sigmoid() * (lse - near.row_max.unsqueeze(3)).exp();
    return (weight * near.o + sums) / (weight + total);
  }
  const Tensor empty = total == 0;
  Tensor advantage = total.masked_fill(empty, 1).log() - lse;
  // log((1 - g) / g) = -factor
  if (mixture == LolcatsMixture::kGated) advantage = advantage - factor;
  const Tensor share = advantage.sigmoid().masked_fill(empty, 0);
  return near.o + share * (divide_or_zero(sums, total) - near.o);
}

}  // namespace cortado
