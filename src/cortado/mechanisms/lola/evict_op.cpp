// LoLA's eviction (memory.h): the choice of the pairs that stay.
#include "cortado/mechanisms/lola/kernel.h"
#include "cortado/mechanisms/lola/memory.h"
#include "cortado/mechanisms/lolcats/fused.h"
#include "cortado/mechanisms/shared/pairs.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/primitives/choice.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

Tensor together(const Tensor& cached, const Tensor& leaving) {
  return cached.defined() ? at::cat({cached, leaving}, 1) : Tensor();
}

// The state's answers with all other candidates added; 0 if the others' weight is below rounding. features is
// [B,H,E,F].
Tensor with_others(const Tensor& answer, const Tensor& features, const Tensor& v) {
  const Tensor values = with_ones(v, answer.scalar_type()).transpose(1, 2);
  const Tensor all = answer + at::matmul(features, at::matmul(features.transpose(2, 3), values));
  const Tensor others = all - features.square().sum(-1, true) * values;
  const Tensor least = score_tie(answer.scalar_type()) * all.narrow(3, v.size(3), 1).abs();
  return others.masked_fill(others.narrow(3, v.size(3), 1).abs() <= least, 0);
}

// The candidates [B,E,H] from the highest score to the lowest. `phi` is needed only for scores by the state.
Tensor by_score(const Tensor& phi, const Tensor& v, const Tensor& scores, const Tensor& sums, LolaScore score) {
  const int64_t candidates = v.size(1), values = v.size(3);
  if (score == LolaScore::kRecent) {
    return at::arange(candidates - 1, -1, -1, v.options().dtype(at::kLong))
        .view({1, candidates, 1})
        .expand({v.size(0), candidates, v.size(2)});
  }
  const double tie = score_tie(sums.scalar_type());
  if (scored_by_state(score)) {
    const Tensor features = phi.transpose(1, 2);
    Tensor answer = at::matmul(features, sums);  // [B,H,E,V+1]
    if (score == LolaScore::kLeaveOneOut) answer = with_others(answer, features, v);
    const Tensor wrong = divide_or_zero(answer.narrow(3, 0, values), answer.narrow(3, values, 1)) - v.transpose(1, 2);
    return in_order(wrong.norm(2, -1).transpose(1, 2), v.norm(2, -1).nan_to_num(0, 0).amax(1, true) * tie, tie);
  }
  return in_order(scores, at::zeros({1, 1, 1}, scores.options()), tie);
}

LolaCache evict_composed(const LolaPairs& all, const Tensor& sums, const LolaRule& rule, const LolaFeatures& phi_k) {
  const auto features = [&](const Tensor& k) { return phi_k(k).to(sums.scalar_type()); };
  const bool by_state = scored_by_state(rule.score);
  const Tensor v = all.v.to(sums.scalar_type()), phi = by_state ? features(all.k) : Tensor();
  const int64_t candidates = v.size(1);
  Tensor order;
  {
    const at::NoGradGuard no_grad;
    order = by_score(phi, v, all.scores, sums, rule.score);
  }
  const Tensor stay = by_age(order, 0, rule.cache), go = by_age(order, rule.cache, candidates - rule.cache);
  const Tensor gone = with_ones(gather_pairs(v, go), sums.scalar_type());
  const Tensor gone_phi = by_state ? gather_pairs(phi, go) : features(gather_pairs(all.k, go));
  const Tensor added = at::matmul(gone_phi.permute({0, 2, 3, 1}), gone.transpose(1, 2));
  return {{gather_pairs(all.k, stay), gather_pairs(all.v, stay), gather_pairs(all.scores, stay)}, sums + added};
}

// Evicts by kernel.h, which reads the candidates where they lie, in the cache and in the window.
LolaCache evict_fused(const LolaCache& cache, const LolaPairs& leaving, const LolaRule& rule,
                      const LolaFeatures& phi_k) {
  const int64_t rows = cache.sums.size(0), heads = cache.sums.size(1);
  const Tensor sums = cache.sums.contiguous(), new_sums = kernels::room(sums.sizes(), sums.options());
  std::vector<Tensor> dense;  // keeps the tensors alive that the call points to
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
                                .tie = static_cast<float>(score_tie(at::kFloat)),
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
  const auto all = [&]() -> LolaPairs {
    return {together(old.k, leaving.k), together(old.v, leaving.v), together(old.scores, leaving.scores)};
  };
  if (old.k.size(1) + leaving.k.size(1) <= rule.cache) return {all(), cache.sums};
  return choose("lola evict", leaving.k,
                on_cpu(
                    "kernel",
                    [&] {
                      return rule.score == LolaScore::kError && !at::GradMode::is_enabled() &&
                             lolcats_fused::takes({leaving.k, leaving.v, cache.sums});
                    },
                    [&] { return evict_fused(cache, leaving, rule, phi_k); }),
                otherwise("ATen", [&] { return evict_composed(all(), cache.sums, rule, phi_k); }));
}

}  // namespace cortado
