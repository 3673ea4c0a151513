#include "cortado/mechanisms/shared/pairs.h"

#include <algorithm>
#include <cmath>

namespace cortado {

Tensor in_order(const Tensor& scores, const Tensor& near, double share) {
  const auto [sorted, order] = scores.sort(/*stable=*/true, 1, /*descending=*/true);
  if (scores.size(1) < 2) return order;
  const Tensor higher = sorted.slice(1, 0, -1), lower = sorted.slice(1, 1);
  const Tensor equal = higher.isfinite() & (higher - lower <= at::maximum(higher.abs() * share, near));
  const Tensor apart = equal.logical_not().to(at::kLong);
  // numbers the groups of equal scores, highest first
  const Tensor group = at::constant_pad_nd(apart.cumsum(1), {0, 0, 1, 0});
  return at::empty_like(group).scatter_(1, order, group).argsort(/*stable=*/true, 1, /*descending=*/false);
}

void rank_by_definition(RankedPairs& pairs, double near, double share) {
  std::sort(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  const auto equal = [&](double a, double b) { return a - b <= std::max(near, share * std::abs(a)); };
  for (size_t first = 0, end = 0; first < pairs.size(); first = end) {
    for (end = first + 1; end < pairs.size() && equal(pairs[end - 1].first, pairs[end].first);) ++end;
    const auto of = [&](size_t place) { return pairs.begin() + static_cast<std::ptrdiff_t>(place); };
    std::sort(of(first), of(end), [](const auto& a, const auto& b) { return a.second < b.second; });
  }
}

Tensor by_age(const Tensor& order, int64_t first, int64_t count) {
  return std::get<0>(order.narrow(1, first, count).sort(1));
}

Tensor gather_pairs(const Tensor& x, const Tensor& places) {
  if (!x.defined()) return x;
  if (x.dim() == 3) return x.gather(1, places);
  const int64_t heads = x.size(2);
  const auto numbers = [&](int64_t count) { return at::arange(count, places.options()); };
  const Tensor row = numbers(x.size(0)).view({-1, 1, 1}) * x.size(1);
  const Tensor pair = (places + row) * heads + numbers(heads);
  return x.flatten(0, 2).index_select(0, pair.flatten()).view({x.size(0), places.size(1), heads, x.size(3)});
}

std::vector<int64_t> numbers_of(const Tensor& x) {
  const Tensor cpu = x.to(at::kCPU).contiguous();
  return {cpu.const_data_ptr<int64_t>(), cpu.const_data_ptr<int64_t>() + cpu.numel()};
}

}  // namespace cortado
