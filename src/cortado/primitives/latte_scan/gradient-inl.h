// The gradient of a tile, and of all tiles from the last to the first; README.md, "The backward". Part of kernel.cpp,
// compiled once per instruction set (hence the unusual guard).
#if defined(CORTADO_LATTE_SCAN_GRADIENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_LATTE_SCAN_GRADIENT_INL_H
#undef CORTADO_LATTE_SCAN_GRADIENT_INL_H
#else
#define CORTADO_LATTE_SCAN_GRADIENT_INL_H
#endif

#include "cortado/primitives/kernels/over_time.h"
#include "cortado/primitives/latte_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::latent {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kHalvings = 4;  // from 16 tokens down to one

// A thread's additional working set in a backward. w = ∂L/∂o, dy = ∂L/∂(p / α).
struct Reverse : Job {
  const LatteGradients* out = nullptr;
  float *w = nullptr, *w_lanes = nullptr, *v_lanes = nullptr;  // a tile; transposed ones
  float* pairs = nullptr;                                      // [16,16]: w_t · v_s
  float *dy = nullptr, *inside = nullptr, *dx = nullptr, *dv = nullptr;
  float *grad = nullptr, *grad_alpha = nullptr;  // ∂L/∂S and ∂L/∂α at the tile's end, relative to its last maximum
  // Sums at the starts of a segment's tiles, and at the starts of all segments: the backward's memory.
  float *tiles = nullptr, *segments = nullptr;
  float *halves = nullptr, *unused = nullptr;  // sums in the middle of a tile; results that are not needed
  // If time is split, for all tokens of the stream: ∂L/∂α [length, all], and the queries' softmaxes.
  float* dalphas = nullptr;
  Softmax* softmaxes = nullptr;
  Sums kept(float* all, int64_t i) const { return sums_at(all + i * sums_size()); }
};

inline void lay_out_reverse(Reverse& job, Scratch& scratch) {
  const int64_t wide = kTokens * job.keys, tile = kTokens * job.values, sums = job.sums_size();
  lay_out(job, scratch);
  for (float** part : {&job.p, &job.lanes, &job.dy, &job.inside, &job.dx}) *part = scratch.take(wide);
  for (float** part : {&job.w, &job.w_lanes, &job.v_lanes, &job.dv}) *part = scratch.take(tile);
  job.pairs = scratch.take(kTokens * kTokens);
  job.grad = scratch.take(job.keys * job.values);
  job.grad_alpha = scratch.take(job.keys);
  job.unused = scratch.take(sums);
  job.halves = scratch.take(kHalvings * sums);
  job.tiles = scratch.take(kSegment * sums);
  job.segments = scratch.take((job.in.tokens / (kSegment * kTokens) + 1) * sums);
  fill(job.w, tile, 0);
}

// Computes pairs = w vᵀ, 0 above the diagonal, and the transposed tiles.
inline void weigh_pairs(const Reverse& job) {
  to_token_lanes(job.v, job.values, job.v_lanes, job.spare);
  to_token_lanes(job.w, job.values, job.w_lanes, job.spare);
  pair_products(job, job.w, job.v_lanes, job.values, job.pairs);
  clear_above(job.pairs);
}

// With dy_t = scale ⊙ (S w_t) + Σ_{s<=t} (w_t·v_s) x_s: writes dα_t = -dp ⊙ y, dp = dy / α, in the place of 1 / α, and
// in the place of dy the query's gradient, through its softmax.
inline void differentiate_queries(const Reverse& job, int64_t n, const Sums& before) {
  const Floats d;
  read_by_values(job, before.state, job.w_lanes, job.dy);
  weigh<Start::kZero, Terms::kUpToRow>(job, job.pairs, {job.x, job.keys}, job.keys, job.inside, job.keys);
  for (int64_t row = 0; row < n * job.keys; row += job.keys) {
    Vec sum = hn::Zero(d);
    for (int64_t l = 0; l < job.keys; l += kLanes) {
      const int64_t i = row + l;
      const Vec dy = hn::MulAdd(hn::Load(d, job.scale + l), hn::Load(d, job.dy + i), hn::Load(d, job.inside + i));
      const Vec dp = hn::Mul(dy, hn::Load(d, job.alphas + i));
      sum = hn::MulAdd(hn::Load(d, job.p + i), dp, sum);
      hn::Store(hn::Neg(hn::Mul(dp, hn::Load(d, job.y + i))), d, job.alphas + i);
      hn::Store(dp, d, job.dy + i);
    }
    if (!job.in.softmax) continue;
    const Vec mean = hn::SumOfLanes(d, sum);
    for (int64_t i = row; i < row + job.keys; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, job.p + i), hn::Sub(hn::Load(d, job.dy + i), mean)), d, job.dy + i);
    }
  }
}

// Computes dθ_s = x_s ⊙ (E v_s + Σ_{t>=s} (w_t·v_s) y_t + ∂L/∂α after s), E = ∂L/∂S; then ∂L/∂α becomes that before the
// tile.
inline void differentiate_keys(const Reverse& job, int64_t n) {
  const Floats d;
  read_by_values(job, job.grad, job.v_lanes, job.dx);
  weigh<Start::kAdd, Terms::kFromRow>(job, job.pairs, {job.y, job.keys}, job.keys, job.dx, job.keys);
  for (int64_t l = 0; l < job.keys; l += kLanes) {
    const Vec behind = hn::Load(d, job.grad_alpha + l);
    Vec sum = hn::Zero(d);  // separate, for accuracy, as for α
    for (int64_t i = (n - 1) * job.keys + l; i >= 0; i -= job.keys) {
      sum = hn::Add(sum, hn::Load(d, job.alphas + i));
      const Vec dx = hn::Add(hn::Load(d, job.dx + i), hn::Add(behind, sum));
      hn::Store(hn::Mul(hn::Load(d, job.x + i), dx), d, job.dx + i);
    }
    hn::Store(hn::Mul(hn::Load(d, job.scale + l), hn::Add(behind, sum)), d, job.grad_alpha + l);
  }
}

// Only the last part of differentiate_keys, for given dα.
inline void pass_alphas(const Reverse& job, const float* dalphas, int64_t n) {
  const Floats d;
  for (int64_t l = 0; l < job.keys; l += kLanes) {
    Vec sum = hn::Zero(d);
    for (int64_t t = n - 1; t >= 0; --t) sum = hn::Add(sum, hn::Load(d, dalphas + t * job.all + job.key + l));
    const Vec behind = hn::Load(d, job.grad_alpha + l);
    hn::Store(hn::Mul(hn::Load(d, job.scale + l), hn::Add(behind, sum)), d, job.grad_alpha + l);
  }
}

// Computes dv_s = Σ_{t>=s} (y_t·x_s) w_t + x_s E.
inline void differentiate_values(const Reverse& job) {
  weigh<Start::kZero, Terms::kFromRow>(job, job.scores, {job.w, job.values}, job.values, job.dv, job.values);
  read_by_keys(job, job.x, job.grad, {job.dv, job.values}, job.dv, job.values);
}

// Steps of a tile's gradient: all of them; or, if time is split, first the queries', which give ∂L/∂α, then what passes
// from tile to tile, and last the rest.
enum class Step { kAll, kQueries, kBounds, kRest };

// Computes the gradient of n tokens from `start` on, given the sums `before` them; kBounds and kRest read no state from
// these. Replaces the gradients after the tokens by those before them. Halves the tile if the maxima rise too far.
template <Step kStep = Step::kAll>
void differentiate(const Reverse& job, int64_t start, int64_t n, const Sums& before, int64_t halving = 0) {
  constexpr bool kQueries = kStep == Step::kAll || kStep == Step::kQueries;
  constexpr bool kRest = kStep == Step::kAll || kStep == Step::kRest;
  const Stretch at = job.stretch(start, n);
  const LatteGradients& out = *job.out;
  read_tile(job.in.theta, at, 0, job.in.latents, 1, job.theta, job.all);
  if (!find_top(job, n, before)) {
    const Sums middle = job.kept(job.halves, halving);
    run_tile<kQueries ? Want::kSums : Want::kScales>(job, start, n / 2, before, middle);
    differentiate<kStep>(job, start + n / 2, n - n / 2, middle, halving + 1);
    return differentiate<kStep>(job, start, n / 2, before, halving + 1);
  }
  write_keys(job, n, before, job.sums_at(job.unused));
  read_tile(job.in.query, at, job.key, job.key_count, 1, job.y, job.keys);
  write_queries<kQueries>(job, n, {job.softmaxes ? job.softmaxes + start : nullptr, !kQueries});
  if (out.o.data) read_tile(out.o, at, job.column, job.columns, 1, job.w, job.values);
  float* dalphas = kStep == Step::kAll ? nullptr : job.dalphas + start * job.all;
  if (kStep == Step::kBounds) {
    look_ahead(job, start - kTokens, {&job.in.theta, &job.in.query}, {&out.o});
    pass_alphas(job, dalphas, n);
    return advance(job, job.entering, {job.w, job.values}, job.scale, job.grad, job.grad);
  }
  read_tile(job.in.v, at, 0, job.in.values, 1, job.v, job.values);
  look_ahead(job, start - kTokens, {&job.in.theta, &job.in.query, &out.query, &out.theta}, {&job.in.v, &out.o, &out.v});
  weigh_pairs(job);
  if (kQueries) {
    differentiate_queries(job, n, before);
    write_tile(job.dy, job.keys, out.query, at, 0, job.in.latents);
    if (kStep == Step::kQueries) return copy(job.alphas, n * job.keys, dalphas);
  }
  if (kRest) {
    if (kStep == Step::kRest) copy(dalphas, n * job.keys, job.alphas);
    score_pairs(job);
    differentiate_keys(job, n);
    write_tile(job.dx, job.keys, out.theta, at, 0, job.in.latents);
    differentiate_values(job);
    write_tile(job.dv, job.values, out.v, at, 0, job.in.values);
    advance(job, job.entering, {job.w, job.values}, job.scale, job.grad, job.grad);
  }
}

// The number of tokens of tile i.
inline int64_t tile_size(const Job& job, int64_t i) {
  const int64_t left = job.length - i * kTokens;
  return left < kTokens ? left : kTokens;
}

inline int64_t tiles(const Job& job) { return (job.length + kTokens - 1) / kTokens; }

// Computes the sums after tile i, `behind`, from those `before` it.
inline void pass_tile(const Job& job, int64_t i, const Sums& before, const Sums& behind) {
  run_tile<Want::kSums>(job, i * kTokens, tile_size(job, i), before, behind);
}

// Forward pass over time: computes the sums at the segments' starts, in job.segments.
inline void find_sums(const Reverse& job) {
  const Sums start = job.kept(job.segments, 0);
  read_sums(job, start);
  read_state(job, job.in.state, start.state);
  for (int64_t i = 0; i < (tiles(job) - 1) / kSegment * kSegment; ++i) {
    const Sums from = job.kept(job.segments, i / kSegment), next = job.kept(job.segments, i / kSegment + 1);
    pass_tile(job, i, i % kSegment == 0 ? from : job.sums, i % kSegment == kSegment - 1 ? next : job.sums);
  }
}

// Reads the gradients after the last tile. Of heads that share a state the first has its gradient.
inline void read_last_grads(const Reverse& job) {
  const LatteGradients& out = *job.out;
  const bool first = !out.state.data || job.head % out.state.repeat == 0;
  read_state(job, first ? out.state : States{}, job.grad);
  read_latents(job, first ? out.normalizer : States{}, 0, job.grad_alpha);
}

// Computes a segment from its first sums, in job.tiles: forwards for its tiles' sums, then backwards.
template <Step kStep = Step::kAll>
void differentiate_segment(const Reverse& job, int64_t segment) {
  const int64_t begin = segment * kSegment, left = tiles(job) - begin, count = left < kSegment ? left : kSegment;
  for (int64_t i = 0; i + 1 < count; ++i) {
    pass_tile(job, begin + i, job.kept(job.tiles, i), job.kept(job.tiles, i + 1));
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    differentiate<kStep>(job, (begin + i) * kTokens, tile_size(job, begin + i), job.kept(job.tiles, i));
  }
}

inline void write_first_grads(const Reverse& job) {
  write_state(job, job.grad, job.out->initial_state);
  write_latents(job, job.grad_alpha, job.out->initial_normalizer);
}

inline void run_backward(const Reverse& job) {
  read_last_grads(job);
  find_sums(job);
  for (int64_t segment = (tiles(job) - 1) / kSegment; segment >= 0; --segment) {
    copy(job.segments + segment * job.sums_size(), job.sums_size(), job.tiles);
    differentiate_segment(job, segment);
  }
  write_first_grads(job);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::latent
HWY_AFTER_NAMESPACE();

#endif
