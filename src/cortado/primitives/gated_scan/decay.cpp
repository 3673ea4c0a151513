#include "cortado/primitives/gated_scan/decay.h"

#include "cortado/primitives/common.h"

namespace cortado::gated {

namespace {

// The first (which = 0) or second (1) halves of the blocks of 2·half tokens: [n,B,H,blocks,half,*].
Tensor halves(const Tensor& x, int64_t half, int64_t which) {
  return x.unflatten(3, {x.size(3) / (2 * half), 2, half}).select(4, which);
}

// The squares (second half, first half) on the diagonal of pairs [..., C, C]: [N,blocks,half,half], a view.
Tensor squares(const Tensor& pairs, int64_t half) {
  const int64_t chunk = pairs.size(-1), blocks = chunk / (2 * half);
  return pairs.view({-1, blocks, 2, half, blocks, 2, half})
      .select(5, 0)
      .select(2, 1)
      .diagonal(0, 1, 3)
      .permute({0, 3, 1, 2});
}

Tensor fresh(const Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); }

// The sum along dimension 4, kept. Reductions of a few rows are slow, one or two need none.
Tensor sum_few(const Tensor& x) {
  if (x.size(4) == 1) return x;
  return x.size(4) == 2 ? x.narrow(4, 0, 1) + x.narrow(4, 1, 1) : x.sum(4, true);
}

// [..., half, K] -> [-1, half, K] for a batched product
Tensor batch(const Tensor& x) { return x.reshape({-1, x.size(-2), x.size(-1)}); }

}  // namespace

GateTree::GateTree(const Tensor& g, bool before, DecayKind kind) : before(before) {
  const bool factors = kind == DecayKind::kFactors;
  const double neutral = factors ? 1 : 0;
  enter = before ? at::full_like(g, neutral) : fresh(g);
  leave = at::full_like(g, neutral);
  through = g;
  for (int64_t half = 1; half < g.size(3); half *= 2) {
    const Tensor queries = halves(enter, half, 1), keys = halves(leave, half, 0);
    const Tensor first = halves(through, 1, 0), second = halves(through, 1, 1);  // [n,B,H,blocks,1,K]
    levels.push_back({half, fresh(queries), half == 1 ? Tensor() : fresh(keys), {}, {}});
    if (factors) {
      levels.back().first = first;
      levels.back().second = second;
      queries.mul_(first);
      keys.mul_(second);
      through = (first * second).squeeze(4);
    } else {
      queries.add_(first);
      keys.add_(second);
      through = (first + second).squeeze(4);
    }
  }
}

void GateDescent::descend(const GateTree::Level& level, const Tensor& to_query, const Tensor& from_key) {
  const int64_t half = level.half;
  const Tensor queries = halves(flow_.enter, half, 1), keys = halves(flow_.leave, half, 0);
  const Tensor whole = flow_.through.unsqueeze(4);
  // The sums of this size grew from those of half the size by the sum of the other half, so that gets their gradient.
  Tensor through;               // [n,B,H,blocks,2,K|1]
  if (level.first.defined()) {  // a product's gradient goes to each factor times the other
    const Tensor first = sum_few(queries * level.to_query).addcmul_(whole, level.second);
    const Tensor second = sum_few(half == 1 ? keys : keys * level.from_key) + whole * level.first;
    through = at::cat({first, second}, 4);
    queries.mul_(level.first);
    keys.mul_(level.second);
  } else {
    through = at::cat({sum_few(queries), sum_few(keys)}, 4).add_(whole);
  }
  flow_.through = through.flatten(3, 4);
  queries.add_(to_query);
  if (half > 1) keys.add_(from_key);  // between neighbours there is only the query's gate
}

Tensor GateDescent::finish(const GateTree& tree) const {
  return tree.before ? flow_.through : flow_.through + flow_.enter;
}

Decay::Decay(const Tensor& g, const Tensor& bonus, int64_t chunk, const at::TensorOptions& options, DecayKind kind)
    : kind_(kind), bonus_(bonus) {
  if (!g.defined()) {
    pair_ = at::ones({1, 1, 1, chunk, chunk}, options).tril_(bonus.defined() ? -1 : 0);
    return;
  }
  tree_.emplace(g, bonus.defined(), kind);
  if (of_factors()) {
    enter_ = tree_->enter;
    leave_ = tree_->leave;
    through_ = tree_->through.transpose(-1, -2);
    return;
  }
  const bool per_channel = g.size(4) > 1;
  if (!per_channel) {
    pair_ = at::full({g.size(0), g.size(1), g.size(2), chunk, chunk}, -kInfinity, options);
    if (!bonus.defined()) pair_.diagonal(0, -2, -1).zero_();
    for (const auto& level : tree_->levels) {
      Tensor target = squares(pair_, level.half);
      const Tensor queries = level.to_query.reshape({-1, target.size(1), level.half, 1});
      if (level.half == 1) {
        target.copy_(queries);
      } else {
        at::add_out(target, queries, level.from_key.reshape({-1, target.size(1), 1, level.half}));
      }
    }
    pair_.exp_();
  } else {
    for (auto& level : tree_->levels) {
      level.to_query.exp_();
      if (level.half > 1) level.from_key.exp_();
    }
  }
  enter_ = tree_->enter.exp_();
  leave_ = tree_->leave.exp_();
  through_ = tree_->through.exp().transpose(-1, -2);
}

void Decay::pairs(const Tensor& y, const Tensor& x, PairWork& work) const {
  if (per_head()) {
    head_pairs(y, x, work);
  } else {
    channel_pairs(y, x, work);
  }
  if (!per_head() || bonus_.defined()) diagonal(y, x, work);
}

void Decay::head_pairs(const Tensor& y, const Tensor& x, PairWork& work) const {
  const Tensor keys = x.flatten(0, 2), queries = y.defined() ? y.flatten(0, 2) : y;
  const std::vector<int64_t> full{x.size(0), x.size(1), x.size(2), x.size(3), x.size(3)};
  if (work.scores || work.gate) {
    work.scores_out = at::bmm(queries, keys.transpose(1, 2));
    work.scores_out.view(full).mul_(pair_);
  }
  if (work.dy.defined() || work.dx.defined()) {
    const Tensor weights = (work.m.view(full) * pair_).flatten(0, 2);
    if (work.dy.defined()) work.dy.flatten(0, 2).baddbmm_(weights, keys);
    if (work.dx.defined()) work.dx.flatten(0, 2).baddbmm_(weights.transpose(1, 2), queries);
  }
  if (!work.gate) return;
  const Tensor shares = work.m * work.scores_out;  // what each pair adds to every gate between its two tokens
  GateDescent descent(std::move(work.flow));
  for (auto level = tree_->levels.rbegin(); level != tree_->levels.rend(); ++level) {
    const Tensor square = squares(shares, level->half);
    const std::vector<int64_t> sizes{full[0], full[1], full[2], square.size(1), level->half, 1};
    descent.descend(*level, square.sum(-1).view(sizes), square.sum(-2).view(sizes));
  }
  work.dg = descent.finish(*tree_);
}

void Decay::channel_pairs(const Tensor& y, const Tensor& x, PairWork& work) const {
  const int64_t chunk = x.size(3);
  if (work.scores) work.scores_out = at::zeros({x.size(0) * x.size(1) * x.size(2), chunk, chunk}, x.options());
  std::optional<GateDescent> descent;
  if (work.gate) descent.emplace(std::move(work.flow));
  for (auto level = tree_->levels.rbegin(); level != tree_->levels.rend(); ++level) {
    const int64_t half = level->half;
    const Tensor keys = half == 1 ? halves(x, half, 0) : halves(x, half, 0) * level->from_key;
    const Tensor queries = y.defined() ? halves(y, half, 1) * level->to_query : y;
    if (work.scores) {
      Tensor square = squares(work.scores_out, half);
      square.copy_((half == 1 ? (queries * keys).sum(-1) : at::bmm(batch(queries), batch(keys).transpose(1, 2)))
                       .view(square.sizes()));
    }
    if (!work.m.defined()) continue;
    const Tensor weights = batch(fresh(squares(work.m, half)));
    auto apply = [&](const Tensor& matrix, const Tensor& rows) {  // a 1x1 matrix is no work for a batched product
      return (half == 1 ? matrix * batch(rows) : at::bmm(matrix, batch(rows))).view(rows.sizes());
    };
    Tensor to_query, from_key;
    if (work.dy.defined()) {
      to_query = apply(weights, keys);
      halves(work.dy, half, 1).addcmul_(to_query, level->to_query);
    }
    if (work.dx.defined()) {
      from_key = apply(weights.transpose(1, 2), queries);
      const Tensor target = halves(work.dx, half, 0);
      half == 1 ? target.add_(from_key) : target.addcmul_(from_key, level->from_key);
    }
    if (!descent) continue;
    // Of a factor, or of its log: the gradient of the product of token and factor, times the rest or times all of it.
    to_query.mul_(of_factors() ? halves(y, half, 1) : queries);
    if (half > 1) from_key.mul_(of_factors() ? halves(x, half, 0) : keys);
    descent->descend(*level, to_query, half == 1 ? Tensor() : from_key);
  }
  if (descent) work.dg = descent->finish(*tree_);
}

void Decay::diagonal(const Tensor& y, const Tensor& x, PairWork& work) const {
  const Tensor seen = bonus_.defined() ? x * bonus_ : x;
  if (work.scores) work.scores_out.diagonal(0, 1, 2).copy_((y * seen).sum(-1).flatten(0, 2));
  if (!work.m.defined()) return;
  const Tensor weight = work.m.diagonal(0, 1, 2).reshape({x.size(0), x.size(1), x.size(2), x.size(3), 1});
  if (work.dy.defined()) work.dy.addcmul_(weight, seen);
  if (work.dx.defined()) work.dx.addcmul_(weight, bonus_.defined() ? y * bonus_ : y);
  if (bonus_.defined() && work.dx.defined()) work.dbonus = (weight * y * x).sum(at::IntArrayRef{0, 3});
}

}  // namespace cortado::gated
