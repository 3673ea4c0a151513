// A thread's working set: a head, its sums, and a tile of it as keys and queries. Part of kernel.cpp, compiled once per
// instruction set (hence the unusual guard).
#if defined(CORTADO_LATTE_SCAN_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_LATTE_SCAN_TILE_INL_H
#undef CORTADO_LATTE_SCAN_TILE_INL_H
#else
#define CORTADO_LATTE_SCAN_TILE_INL_H
#endif

#include "cortado/primitives/kernels/over_time.h"
#include "cortado/primitives/kernels/products-inl.h"
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/latte_scan/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::latent {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// How far a tile's last maximum may exceed that at its first token: the sums lose exp(kRise) of their range.
constexpr float kRise = 20;

// Sums relative to their maximum: S [keys, values], α [keys], and m of all latents, padded and contiguous.
struct Sums {
  float *state = nullptr, *alpha = nullptr, *maximum = nullptr;
};

// One head of one row, or a block of its state, on one thread. The latents are the keys of its state. Whether a block's
// tile is halved depends on all latents' maxima, so that all blocks agree.
struct Job : Tiling {
  const LatteKernel& in;
  int64_t all = 0;  // latents of the head, padded
  int64_t row = 0, head = 0, first = 0, length = 0;
  int64_t key = 0, key_count = 0;   // this job's latents
  int64_t column = 0, columns = 0;  // of v

  float* theta = nullptr;                   // of all latents; shares x's memory if the job has them all
  float *x = nullptr, *alphas = nullptr;    // exp(θ - top), α_t
  float *y = nullptr, *entering = nullptr;  // p / α, y ⊙ scale
  float* x_lanes = nullptr;                 // x transposed
  float *v = nullptr, *o = nullptr, *scores = nullptr;
  float *top = nullptr, *scale = nullptr, *beyond = nullptr;  // the tile's last maximum; exp(maximum before - top);
                                                              // 0, or -inf where there is no latent
  float* p = nullptr;                                         // backward: p, from which y is made
  Sums sums = {};                                             // current sums

  Stretch stretch(int64_t start, int64_t tokens) const { return {in.bounds ? 0 : row, head, first + start, 1, tokens}; }
  int64_t sums_size() const { return keys * (values + 1) + all; }
  Sums sums_at(float* memory) const {
    float* alpha = memory + keys * values;
    return {memory, alpha, alpha + keys};
  }
};

// Sets the job to block number i of all rows' heads.
inline void place(Job& job, const Blocks& blocks, int64_t i) {
  const LatteKernel& in = job.in;
  const int64_t stream = i / blocks.count();
  job.row = stream / in.heads;
  job.head = stream % in.heads;
  job.key = blocks.key(i);
  job.key_count = blocks.keys_of(i, in.latents);
  job.column = blocks.value(i);
  job.columns = blocks.values_of(i, in.values);
  job.first = in.bounds ? in.bounds[job.row] : 0;
  job.length = in.bounds ? in.bounds[job.row + 1] - job.first : in.tokens;
}

inline void lay_out(Job& job, Scratch& scratch) {
  const int64_t wide = kTokens * job.keys, tile = kTokens * job.values;
  for (float** part : {&job.x, &job.alphas, &job.y, &job.entering, &job.x_lanes}) *part = scratch.take(wide);
  job.theta = job.all == job.keys ? job.x : scratch.take(kTokens * job.all);
  job.spare = scratch.take(wide > tile ? wide : tile);
  for (float** part : {&job.v, &job.o}) *part = scratch.take(tile);
  for (float** part : {&job.top, &job.beyond}) *part = scratch.take(job.all);
  job.scale = scratch.take(job.keys);
  job.scores = scratch.take(kTokens * kTokens);
  job.sums = job.sums_at(scratch.take(job.sums_size()));
  const Floats d;
  fill(job.beyond, job.all, 0);
  for (int64_t l = job.in.latents; l < job.all; ++l) job.beyond[l] = -hn::GetLane(hn::Inf(d));
}

// --- States: [h,L,width] outside, padded inside. ---

inline float* state_address(const Job& job, const States& states, int64_t width) {
  return states.data + (job.row * states.heads + job.head / states.repeat) * job.in.latents * width;
}

// Reads this job's part of [L]; `missing` if there is no data.
inline void read_latents(const Job& job, const States& from, float missing, float* to) {
  if (!from.data) return fill(to, job.keys, missing);
  read_row(state_address(job, from, 1) + job.key, 1, job.key_count, 1.0f, to, job.keys);
}

inline void read_state(const Job& job, const States& states, float* to) {
  const int64_t width = job.in.values;
  if (!states.data) return fill(to, job.keys * job.values, 0);
  const float* from = state_address(job, states, width) + job.key * width + job.column;
  for (int64_t l = 0; l < job.key_count; ++l) {
    read_row(from + l * width, 1, job.columns, 1.0f, to + l * job.values, job.values);
  }
  fill(to + job.key_count * job.values, (job.keys - job.key_count) * job.values, 0);
}

// The first of the heads that share a state writes it.
inline void write_latents(const Job& job, const float* from, const States& to) {
  if (!to.data || job.head % to.repeat != 0) return;
  write_row(from, state_address(job, to, 1), 1, job.in.latents);
}

inline void write_state(const Job& job, const float* from, const States& states) {
  const int64_t width = job.in.values;
  if (!states.data || job.head % states.repeat != 0) return;
  float* to = state_address(job, states, width);
  for (int64_t l = 0; l < job.in.latents; ++l) write_row(from + l * job.values, to + l * width, 1, width);
}

// Reads the row's initial α and m.
inline void read_sums(const Job& job, const Sums& to) {
  const Floats d;
  read_latents(job, job.in.normalizer, 0, to.alpha);
  if (!job.in.maximum.data) return fill(to.maximum, job.all, -hn::GetLane(hn::Inf(d)));
  read_row(state_address(job, job.in.maximum, 1), 1, job.in.latents, 1.0f, to.maximum, job.all);
}

// --- A tile of n tokens, given the sums `before` it. ---

// 1 / x to about 1 ulp.
HWY_INLINE Vec reciprocal(Floats d, Vec x) {
  Vec r = hn::ApproximateReciprocal(x);
  const Vec two = hn::Set(d, 2.0f);
  for (int i = 0; i < (HWY_TARGET == HWY_AVX3 ? 1 : 2); ++i) r = hn::Mul(r, hn::NegMulAdd(x, r, two));
  return r;
}

// Finds the maximum after n tokens of θ. Returns whether all of them may be relative to it.
inline bool find_top(const Job& job, int64_t n, const Sums& before) {
  const Floats d;
  bool fits = true;
  for (int64_t l = 0; l < job.all; l += kLanes) {
    const Vec first = hn::Max(hn::Load(d, before.maximum + l), hn::Load(d, job.theta + l));
    Vec top = first;
    for (int64_t t = 1; t < n; ++t) top = hn::Max(top, hn::Load(d, job.theta + t * job.all + l));
    hn::Store(top, d, job.top + l);
    const Vec rise = hn::IfThenZeroElse(hn::Eq(top, first), hn::Sub(top, first));  // both may be -inf
    fits = hn::AllTrue(d, hn::Le(rise, hn::Set(d, kRise))) && fits;
  }
  return n == 1 || fits;
}

// Computes x from θ, and every token's α relative to the same maximum. Writes α and the maximum after the tile to
// `behind`, which may be `before`.
inline void write_keys(const Job& job, int64_t n, const Sums& before, const Sums& behind) {
  const Floats d;
  const Vec minus = hn::Neg(hn::Inf(d));
  for (int64_t l = 0; l < job.keys; l += kLanes) {
    const Vec top = hn::Load(d, job.top + job.key + l), seen = hn::IfThenZeroElse(hn::Eq(top, minus), top);
    const Vec scale = exp_of(d, hn::Sub(hn::Load(d, before.maximum + job.key + l), seen));
    const Vec entered = hn::Mul(scale, hn::Load(d, before.alpha + l));
    Vec sum = hn::Zero(d);  // separate, as for the state: α is then rounded once per tile, not once per token
    hn::Store(scale, d, job.scale + l);
    const float* theta = job.theta + job.key + l;
    for (int64_t i = l; i < n * job.keys; i += job.keys, theta += job.all) {
      const Vec x = exp_of(d, hn::Sub(hn::Load(d, theta), seen));
      sum = hn::Add(sum, x);
      hn::Store(x, d, job.x + i);
      hn::Store(hn::Add(entered, sum), d, job.alphas + i);
    }
    hn::Store(hn::Add(entered, sum), d, behind.alpha + l);
  }
  copy(job.top, job.all, behind.maximum);
  fill(job.x + n * job.keys, (kTokens - n) * job.keys, 0);
}

// A query's softmax: the largest logit, and 1 / Σ exp(y - peak).
struct Softmax {
  float peak = 0, factor = 1;
};

// The largest logit of all latents.
inline float peak_of(const Job& job, const float* y) {
  const Floats d;
  Vec most = hn::Neg(hn::Inf(d));
  for (int64_t l = 0; l < job.keys; l += kLanes) {
    most = hn::Max(most, hn::Add(hn::Load(d, y + l), hn::Load(d, job.beyond + l)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Replaces y by exp(y - peak) for this job's latents and returns their sum.
inline float write_exponentials(const Job& job, float peak, float* y) {
  const Floats d;
  Vec sum = hn::Zero(d);
  for (int64_t l = 0; l < job.keys; l += kLanes) {
    const Vec logit = hn::Add(hn::Load(d, y + l), hn::Load(d, job.beyond + job.key + l));
    const Vec e = exp_of(d, hn::Sub(logit, hn::Set(d, peak)));
    sum = hn::Add(sum, e);
    hn::Store(e, d, y + l);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// How the softmaxes of a tile's queries are handled: stored, or read from an earlier pass.
struct Softmaxes {
  Softmax* all = nullptr;
  bool known = false;
};

// Replaces y by its exponentials and returns row t's factor on them.
inline float softmax_row(const Job& job, float* y, const Softmaxes& softmaxes, int64_t t) {
  if (softmaxes.known) {
    write_exponentials(job, softmaxes.all[t].peak, y);
    return softmaxes.all[t].factor;
  }
  const float peak = peak_of(job, y);
  const Softmax found{peak, 1 / write_exponentials(job, peak, y)};
  if (softmaxes.all) softmaxes.all[t] = found;
  return found.factor;
}

// Computes the weights p / α that read the state, 0 where nothing was seen. With kKeep it also stores p and the inverse
// of α.
template <bool kKeep>
void write_queries(const Job& job, int64_t n, const Softmaxes& softmaxes = {}) {
  const Floats d;
  for (int64_t t = 0; t < n; ++t) {
    float* y = job.y + t * job.keys;
    const Vec factor = hn::Set(d, job.in.softmax ? softmax_row(job, y, softmaxes, t) : 1.0f);
    for (int64_t l = 0; l < job.keys; l += kLanes) {
      const int64_t i = t * job.keys + l;
      const Vec alpha = hn::Load(d, job.alphas + i), p = hn::Mul(hn::Load(d, y + l), factor);
      const Vec inverse = hn::IfThenZeroElse(hn::Eq(alpha, hn::Zero(d)), reciprocal(d, alpha));
      const Vec read = hn::Mul(p, inverse);
      if (kKeep) hn::Store(p, d, job.p + i);
      if (kKeep) hn::Store(inverse, d, job.alphas + i);
      hn::Store(read, d, y + l);
      hn::Store(hn::Mul(read, hn::Load(d, job.scale + l)), d, job.entering + i);
    }
  }
  fill(job.entering + n * job.keys, (kTokens - n) * job.keys, 0);
}

// Sets [16,16] to 0 above the diagonal.
inline void clear_above(float* pairs) {
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t s = t + 1; s < kTokens; ++s) pairs[t * kTokens + s] = 0;
  }
}

// Computes scores = y xᵀ, 0 above the diagonal.
inline void score_pairs(const Job& job) {
  to_token_lanes(job.x, job.keys, job.x_lanes, job.spare);
  pair_products(job, job.y, job.x_lanes, job.keys, job.scores);
  clear_above(job.scores);
}

// Prefetches the tile from `start` on, if there is one, during the current tile.
inline void look_ahead(const Job& job, int64_t start, std::initializer_list<const Timed*> wide,
                       std::initializer_list<const Timed*> tall) {
  job.fetcher->clear();
  if (start < 0 || start >= job.length) return;
  const int64_t left = job.length - start;
  const Stretch at = job.stretch(start, left < kTokens ? left : kTokens);
  for (const Timed* x : wide) {
    x == &job.in.theta ? job.fetcher->add(*x, at, 0, job.in.latents) : job.fetcher->add(*x, at, job.key, job.key_count);
  }
  for (const Timed* x : tall) job.fetcher->add(*x, at, job.column, job.columns);
}

// A tile computes outputs and the sums after it, only the sums, or of these only α and the maximum.
enum class Want { kOutputs, kSums, kScales };

// Computes n tokens from `start` on relative to their last maximum, or in halves if it rose too far; `behind` may be
// `before`.
template <Want kWant>
void run_tile(const Job& job, int64_t start, int64_t n, const Sums& before, const Sums& behind) {
  const Stretch at = job.stretch(start, n);
  read_tile(job.in.theta, at, 0, job.in.latents, 1, job.theta, job.all);
  if (!find_top(job, n, before)) {
    run_tile<kWant>(job, start, n / 2, before, behind);
    return run_tile<kWant>(job, start + n / 2, n - n / 2, behind, behind);
  }
  write_keys(job, n, before, behind);
  if (kWant == Want::kScales) return;
  if (kWant == Want::kOutputs) {
    read_tile(job.in.query, at, 0, job.in.latents, 1, job.y, job.keys);
    write_queries<false>(job, n);
    look_ahead(job, start + n, {&job.in.theta, &job.in.query}, {&job.in.v, &job.in.o});
    score_pairs(job);
  } else {
    look_ahead(job, start + n, {&job.in.theta}, {&job.in.v});
  }
  const Rows v = rows_of(job.in.v, at, job.column, job.columns, job.v, job.values);
  if (kWant == Want::kOutputs) {
    read_tokens(job, job.scores, v, job.entering, before.state, {job.in.o, at, job.column, job.columns, job.o});
  }
  advance(job, job.x, v, job.scale, before.state, behind.state);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::latent
HWY_AFTER_NAMESPACE();

#endif
