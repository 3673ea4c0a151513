#include "cortado/mechanisms/lola/eviction.h"

#include "cortado/mechanisms/lola/kernel.h"
#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/mechanisms/lolcats/parts.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

Tensor together(const Tensor& cached, const Tensor& leaving) {
  return cached.defined() ? at::cat({cached, leaving}, 1) : Tensor();
}

// x [B,E,H,...] at `places` [B,E',H]: [B,E',H,...]. Whole pairs are copied, not their numbers one by one.
Tensor gather_pairs(const Tensor& x, const Tensor& places) {
  if (!x.defined()) return x;
  if (x.dim() == 3) return x.gather(1, places);
  const int64_t heads = x.size(2);
  const auto numbers = [&](int64_t count) { return at::arange(count, places.options()); };
  const Tensor row = numbers(x.size(0)).view({-1, 1, 1}) * x.size(1);
  const Tensor pair = (places + row) * heads + numbers(heads);
  return x.flatten(0, 2).index_select(0, pair.flatten()).view({x.size(0), places.size(1), heads, x.size(3)});
}

// [B,E,H] the candidates from the highest score to the lowest; of equals the older first. `phi`: looked at for kError
// only.
Tensor by_score(const Tensor& phi, const Tensor& v, const Tensor& scores, const Tensor& sums, LolaScore score) {
  const int64_t candidates = v.size(1), values = v.size(3);
  if (score == LolaScore::kRecent) {
    return at::arange(candidates - 1, -1, -1, v.options().dtype(at::kLong))
        .view({1, candidates, 1})
        .expand({v.size(0), candidates, v.size(2)});
  }
  Tensor ranked = scores;
  if (score == LolaScore::kError) {
    const Tensor answer = at::matmul(phi.transpose(1, 2), sums);  // [B,H,E,V+1]
    const Tensor wrong = divide_or_zero(answer.narrow(3, 0, values), answer.narrow(3, values, 1)) - v.transpose(1, 2);
    ranked = wrong.norm(2, -1).transpose(1, 2);
  }
  return at::argsort(ranked, /*stable=*/true, 1, /*descending=*/true);
}

LolaCache composed(const LolaPairs& all, const Tensor& sums, const LolaRule& rule, const LolaFeatures& phi_k) {
  const auto features = [&](const Tensor& k) { return phi_k(k).to(sums.scalar_type()); };
  const bool by_error = rule.score == LolaScore::kError;
  const Tensor v = all.v.to(sums.scalar_type()), phi = by_error ? features(all.k) : Tensor();
  const int64_t candidates = v.size(1);
  Tensor order;
  {
    const at::NoGradGuard no_grad;
    order = by_score(phi, v, all.scores, sums, rule.score);
  }
  const auto by_age = [&](int64_t first, int64_t count) { return std::get<0>(order.narrow(1, first, count).sort(1)); };
  const Tensor stay = by_age(0, rule.cache), go = by_age(rule.cache, candidates - rule.cache);
  const Tensor gone = with_ones(gather_pairs(v, go), sums.scalar_type());
  const Tensor gone_phi = by_error ? gather_pairs(phi, go) : features(gather_pairs(all.k, go));
  const Tensor added = at::matmul(gone_phi.permute({0, 2, 3, 1}), gone.transpose(1, 2));
  return {{gather_pairs(all.k, stay), gather_pairs(all.v, stay), gather_pairs(all.scores, stay)}, sums + added};
}

// By kernel.h, whose candidates lie in two places.
LolaCache fused(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule, const LolaFeatures& phi_k) {
  const int64_t rows = cache.sums.size(0), heads = cache.sums.size(1);
  const Tensor sums = cache.sums.contiguous(), new_sums = kernels::room(sums.sizes(), sums.options());
  std::vector<Tensor> dense;  // what the call points to
  const auto timed = [&](const Tensor& x) {
    if (x.size(1) == 0) return kernels::Timed{};
    dense.push_back(kernels::dense_rows(x));
    return kernels::timed(dense.back(), heads);
  };
  const auto candidates = [&](const Tensor& cached, const Tensor& left) {
    return lola_kernel::Candidates{timed(cached), timed(left)};
  };
  const auto room = [&](int64_t width) { return kernels::room({rows, rule.cache, heads, width}, sums.options()); };
  const LolaPairs &old = cache.pairs, stay{room(old.k.size(3)), room(old.v.size(3)), {}};
  const auto features = [&](const Tensor& k) { return k.size(1) == 0 ? k : phi_k(k).to(sums.scalar_type()); };
  const Tensor phi_old = features(old.k), phi_left = features(leaving.k);
  const lola_kernel::Evict call{.batch = rows,
                                .heads = heads,
                                .cached = old.k.size(1),
                                .leaving = leaving.k.size(1),
                                .kept = rule.cache,
                                .features = sums.size(2),
                                .keys = stay.k.size(3),
                                .values = stay.v.size(3),
                                .k = candidates(old.k, leaving.k),
                                .v = candidates(old.v, leaving.v),
                                .phi = candidates(phi_old, phi_left),
                                .sums = sums.const_data_ptr<float>(),
                                .new_keys = timed(stay.k),
                                .new_values = timed(stay.v),
                                .new_sums = new_sums.data_ptr<float>()};
  lola_kernel::evict(call, kernels::parallel(sums.numel() * (call.cached + call.leaving)));
  return {stay, new_sums};
}

}  // namespace

LolaCache evict(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule, const LolaFeatures& phi_k) {
  const LolaPairs& old = cache.pairs;
  if (old.k.size(1) + leaving.k.size(1) > rule.cache && rule.score == LolaScore::kError && lolcats_fused::inference() &&
      lolcats_fused::takes({leaving.k, leaving.v, cache.sums})) {
    return fused(cache, leaving, rule, phi_k);
  }
  const LolaPairs all{together(old.k, leaving.k), together(old.v, leaving.v), together(old.scores, leaving.scores)};
  if (all.k.size(1) <= rule.cache) return {all, cache.sums};
  return composed(all, cache.sums, rule, phi_k);
}

}  // namespace cortado
