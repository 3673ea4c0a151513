// Latte in tiles of 16 tokens, none of which has decays inside; README.md, "The kernel". Compiled once for each
// instruction set.
#include "cortado/primitives/latte_scan/kernel.h"

#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/latte_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tiles-inl.h"

#ifndef CORTADO_LATTE_SCAN_KERNEL_ONCE
#define CORTADO_LATTE_SCAN_KERNEL_ONCE
namespace cortado::latent {
namespace {

// The work of all threads: heads of rows, taken one after the other.
struct Jobs {
  const LatteKernel* call;
  int64_t count, next;

  int64_t take() { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
};

}  // namespace
}  // namespace cortado::latent
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::latent {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// By how much a tile's last maximum may exceed the one at its first token: exp of it is what the sums lose in range.
constexpr float kRise = 20;

// One head of one row, on one thread. Tiles are [16, latents] or [16, values], padded.
struct Job {
  const LatteKernel& in;
  int64_t row = 0, head = 0, first = 0, length = 0;
  int64_t latents = 0, values = 0;  // padded

  float *x = nullptr, *alphas = nullptr;       // exp(θ - top), α_t
  float *y = nullptr, *entering = nullptr;     // p / α, y ⊙ scale
  float *x_lanes = nullptr, *spare = nullptr;  // x transposed; a tile
  float *v = nullptr, *o = nullptr, *scores = nullptr;
  float *state = nullptr, *alpha = nullptr, *maximum = nullptr;  // at the tile's start
  float *top = nullptr, *scale = nullptr, *beyond = nullptr;     // the tile's last maximum; exp(maximum - top);
                                                                 // 0, or -inf where there is no latent
  Fetcher* fetcher = nullptr;

  Stretch stretch(int64_t start, int64_t tokens) const { return {in.bounds ? 0 : row, head, first + start, 1, tokens}; }
};

void lay_out(Job& job, Scratch& scratch) {
  const int64_t wide = kTokens * job.latents, tile = kTokens * job.values;
  for (float** part : {&job.x, &job.alphas, &job.y, &job.entering, &job.x_lanes, &job.spare})
    *part = scratch.take(wide);
  for (float** part : {&job.v, &job.o}) *part = scratch.take(tile);
  for (float** part : {&job.alpha, &job.maximum, &job.top, &job.scale, &job.beyond}) *part = scratch.take(job.latents);
  job.scores = scratch.take(kTokens * kTokens);
  job.state = scratch.take(job.latents * job.values);
  const Floats d;
  fill(job.beyond, job.latents, 0);
  for (int64_t l = job.in.latents; l < job.latents; ++l) job.beyond[l] = -hn::GetLane(hn::Inf(d));
}

// --- States: [h,L,width] outside. ---

float* state_address(const Job& job, const States& states, int64_t width) {
  return states.data + (job.row * states.heads + job.head / states.repeat) * job.in.latents * width;
}

void read_sums(const Job& job) {
  const Floats d;
  const auto read = [&](const States& from, float* to, float missing) {
    if (!from.data) return fill(to, job.latents, missing);
    read_row(state_address(job, from, 1), 1, job.in.latents, 1.0f, to, job.latents);
  };
  read(job.in.normalizer, job.alpha, 0);
  read(job.in.maximum, job.maximum, -hn::GetLane(hn::Inf(d)));
}

void write_sums(const Job& job) {
  if (job.head % job.in.last_state.repeat != 0) return;  // heads that share a state: the first of them
  write_row(job.alpha, state_address(job, job.in.last_normalizer, 1), 1, job.in.latents);
  write_row(job.maximum, state_address(job, job.in.last_maximum, 1), 1, job.in.latents);
}

void read_state(const Job& job) {
  const int64_t width = job.in.values;
  if (!job.in.state.data) return fill(job.state, job.latents * job.values, 0);
  const float* from = state_address(job, job.in.state, width);
  for (int64_t l = 0; l < job.in.latents; ++l) {
    read_row(from + l * width, 1, width, 1.0f, job.state + l * job.values, job.values);
  }
  fill(job.state + job.in.latents * job.values, (job.latents - job.in.latents) * job.values, 0);
}

void write_state(const Job& job) {
  const int64_t width = job.in.values;
  if (job.head % job.in.last_state.repeat != 0) return;
  float* to = state_address(job, job.in.last_state, width);
  for (int64_t l = 0; l < job.in.latents; ++l) write_row(job.state + l * job.values, to + l * width, 1, width);
}

// --- A tile. ---

// 1 / x to about 1 ulp.
HWY_INLINE Vec reciprocal(Floats d, Vec x) {
  Vec r = hn::ApproximateReciprocal(x);
  const Vec two = hn::Set(d, 2.0f);
  for (int i = 0; i < (HWY_TARGET == HWY_AVX3 ? 1 : 2); ++i) r = hn::Mul(r, hn::NegMulAdd(x, r, two));
  return r;
}

// The maximum after n tokens of θ. Returns whether all of them may be measured against it.
bool find_top(const Job& job, int64_t n) {
  const Floats d;
  bool fits = true;
  for (int64_t l = 0; l < job.latents; l += kLanes) {
    const Vec first = hn::Max(hn::Load(d, job.maximum + l), hn::Load(d, job.x + l));
    Vec top = first;
    for (int64_t t = 1; t < n; ++t) top = hn::Max(top, hn::Load(d, job.x + t * job.latents + l));
    hn::Store(top, d, job.top + l);
    const Vec rise = hn::IfThenZeroElse(hn::Eq(top, first), hn::Sub(top, first));  // both may be -inf
    fits = hn::AllTrue(d, hn::Le(rise, hn::Set(d, kRise))) && fits;
  }
  return n == 1 || fits;
}

// θ becomes x, and every token's α against the same maximum; α and the maximum those behind the tile.
void write_keys(const Job& job, int64_t n) {
  const Floats d;
  const Vec minus = hn::Neg(hn::Inf(d));
  for (int64_t l = 0; l < job.latents; l += kLanes) {
    const Vec top = hn::Load(d, job.top + l), seen = hn::IfThenZeroElse(hn::Eq(top, minus), top);
    const Vec scale = exp_of(d, hn::Sub(hn::Load(d, job.maximum + l), seen));
    const Vec before = hn::Mul(scale, hn::Load(d, job.alpha + l));
    Vec sum = hn::Zero(d);  // of its own, as the state's is: α is then rounded once a tile, not once a token
    hn::Store(scale, d, job.scale + l);
    for (int64_t i = l; i < n * job.latents; i += job.latents) {
      const Vec x = exp_of(d, hn::Sub(hn::Load(d, job.x + i), seen));
      sum = hn::Add(sum, x);
      hn::Store(x, d, job.x + i);
      hn::Store(hn::Add(before, sum), d, job.alphas + i);
    }
    hn::Store(hn::Add(before, sum), d, job.alpha + l);
    hn::Store(top, d, job.maximum + l);
  }
  fill(job.x + n * job.latents, (kTokens - n) * job.latents, 0);
}

// Row t's factor of the exponentials: 1 / Σ exp(y - peak), which it puts in y's place.
float softmax_row(const Job& job, float* y) {
  const Floats d;
  Vec most = hn::Neg(hn::Inf(d)), sum = hn::Zero(d);
  for (int64_t l = 0; l < job.latents; l += kLanes) {
    most = hn::Max(most, hn::Add(hn::Load(d, y + l), hn::Load(d, job.beyond + l)));
  }
  const Vec peak = hn::MaxOfLanes(d, most);
  for (int64_t l = 0; l < job.latents; l += kLanes) {
    const Vec e = exp_of(d, hn::Sub(hn::Add(hn::Load(d, y + l), hn::Load(d, job.beyond + l)), peak));
    sum = hn::Add(sum, e);
    hn::Store(e, d, y + l);
  }
  return 1 / hn::GetLane(hn::SumOfLanes(d, sum));
}

// The queries as what the state is read with: p / α, 0 where nothing was seen.
void write_queries(const Job& job, int64_t n) {
  const Floats d;
  for (int64_t t = 0; t < n; ++t) {
    float* y = job.y + t * job.latents;
    const Vec factor = hn::Set(d, job.in.softmax ? softmax_row(job, y) : 1.0f);
    for (int64_t l = 0; l < job.latents; l += kLanes) {
      const Vec alpha = hn::Load(d, job.alphas + t * job.latents + l);
      const Vec p = hn::Mul(hn::Load(d, y + l), factor);
      const Vec read = hn::IfThenZeroElse(hn::Eq(alpha, hn::Zero(d)), hn::Mul(p, reciprocal(d, alpha)));
      hn::Store(read, d, y + l);
      hn::Store(hn::Mul(read, hn::Load(d, job.scale + l)), d, job.entering + t * job.latents + l);
    }
  }
  fill(job.entering + n * job.latents, (kTokens - n) * job.latents, 0);
}

// scores = y xᵀ, nothing above the diagonal.
void score_pairs(const Job& job) {
  to_token_lanes(job.x, job.latents, job.x_lanes, job.spare);
  multiply<Start::kZero>({.a = job.y,
                          .a_row = job.latents,
                          .a_column = 1,
                          .b = job.x_lanes,
                          .b_row = kTokens,
                          .out = job.scores,
                          .out_row = kTokens,
                          .rows = kTokens,
                          .columns = kTokens,
                          .depth = job.latents,
                          .fetcher = job.fetcher});
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t s = t + 1; s < kTokens; ++s) job.scores[t * kTokens + s] = 0;
  }
}

// o = scores v + entering S, S <- diag(scale) S + xᵀ v
void read_and_advance(const Job& job, const Stretch& at) {
  const float* given = tile_in_place(job.in.v, at, 0, job.in.values, job.values);
  if (!given) read_tile(job.in.v, at, 0, job.in.values, 1, job.v, job.values);
  const float* v = given ? given : job.v;
  const int64_t v_row = given ? job.in.v.token : job.values;
  float* in_place = tile_in_place(job.in.o, at, 0, job.in.values, job.values);
  float* o = in_place ? in_place : job.o;
  const int64_t o_row = in_place ? job.in.o.token : job.values;
  Product product{.a = job.scores,
                  .a_row = kTokens,
                  .a_column = 1,
                  .b = v,
                  .b_row = v_row,
                  .out = o,
                  .out_row = o_row,
                  .rows = kTokens,
                  .columns = job.values,
                  .depth = kTokens,
                  .fetcher = job.fetcher};
  multiply<Start::kZero, Terms::kUpToRow>(product);
  product.a = job.entering;
  product.a_row = job.latents;
  product.b = job.state;
  product.b_row = job.values;
  product.depth = job.latents;
  product.from = o;
  multiply<Start::kAdd>(product);
  if (!in_place) write_tile(o, o_row, job.in.o, at, 0, job.in.values);
  multiply<Start::kScaled>({.a = job.x,
                            .a_row = 1,
                            .a_column = job.latents,
                            .b = v,
                            .b_row = v_row,
                            .out = job.state,
                            .out_row = job.values,
                            .rows = job.latents,
                            .columns = job.values,
                            .depth = kTokens,
                            .from = job.state,
                            .scale = job.scale,
                            .fetcher = job.fetcher});
}

void look_ahead(const Job& job, int64_t start) {
  job.fetcher->clear();
  if (start >= job.length) return;
  const int64_t left = job.length - start;
  const Stretch at = job.stretch(start, left < kTokens ? left : kTokens);
  job.fetcher->add(job.in.theta, at, 0, job.in.latents);
  job.fetcher->add(job.in.query, at, 0, job.in.latents);
  job.fetcher->add(job.in.v, at, 0, job.in.values);
  job.fetcher->add(job.in.o, at, 0, job.in.values);
}

// n tokens from `start` on, against their last maximum, or where that rose too far, by halves.
void run_tile(const Job& job, int64_t start, int64_t n) {
  const Stretch at = job.stretch(start, n);
  read_tile(job.in.theta, at, 0, job.in.latents, 1, job.x, job.latents);
  if (!find_top(job, n)) {
    run_tile(job, start, n / 2);
    return run_tile(job, start + n / 2, n - n / 2);
  }
  write_keys(job, n);
  read_tile(job.in.query, at, 0, job.in.latents, 1, job.y, job.latents);
  write_queries(job, n);
  look_ahead(job, start + n);
  score_pairs(job);
  read_and_advance(job, at);
}

// One token: the state is read and written once, where it lies.
template <int kCount>
HWY_INLINE void step_columns(const Job& job, const float* from, float* to, int64_t j, int64_t n) {
  const Floats d;
  Vec sums[kCount], v[kCount];
  for (int c = 0; c < kCount; ++c) {
    sums[c] = hn::Zero(d);
    v[c] = hn::Load(d, job.v + j + c * kLanes);
  }
  for (int64_t l = 0; l < job.in.latents; ++l) {
    const Vec scale = hn::Set(d, job.scale[l]), x = hn::Set(d, job.x[l]), y = hn::Set(d, job.y[l]);
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      const int64_t i = l * job.in.values + j + c * kLanes;
      Vec s = hn::Mul(x, v[c]);
      if (from) s = hn::MulAdd(scale, load_some(from + i, n), s);
      if (to) store_some(s, to + i, n);
      sums[c] = hn::MulAdd(y, s, sums[c]);
    }
  }
  for (int c = 0; c < kCount; ++c) hn::Store(sums[c], d, job.o + j + c * kLanes);
}

void step(const Job& job) {
  const LatteKernel& in = job.in;
  const Stretch at = job.stretch(0, 1);
  read_tile(in.theta, at, 0, in.latents, 1, job.x, job.latents);
  read_tile(in.query, at, 0, in.latents, 1, job.y, job.latents);
  read_tile(in.v, at, 0, in.values, 1, job.v, job.values);
  find_top(job, 1);
  write_keys(job, 1);
  write_queries(job, 1);
  const float* from = in.state.data ? state_address(job, in.state, in.values) : nullptr;
  float* to = job.head % in.last_state.repeat == 0 ? state_address(job, in.last_state, in.values) : nullptr;
  int64_t j = 0;
  for (; j + 4 * kLanes <= in.values; j += 4 * kLanes) step_columns<4>(job, from, to, j, kLanes);
  for (; j + kLanes <= in.values; j += kLanes) step_columns<1>(job, from, to, j, kLanes);
  if (j < in.values) step_columns<1>(job, from, to, j, in.values - j);
  write_tile(job.o, job.values, in.o, at, 0, in.values);
}

void run_jobs(Jobs& jobs) {
  const LatteKernel& in = *jobs.call;
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  Job job{.in = in, .latents = round_up(in.latents, 16), .values = round_up(in.values, kLanes)};
  job.fetcher = &fetcher;
  lay_out(job, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    job.row = i / in.heads;
    job.head = i % in.heads;
    job.first = in.bounds ? in.bounds[job.row] : 0;
    job.length = in.bounds ? in.bounds[job.row + 1] - job.first : in.tokens;
    read_sums(job);
    if (job.length == 1) {
      step(job);
    } else {
      read_state(job);
      for (int64_t t = 0; t < job.length; t += kTokens) {
        run_tile(job, t, job.length - t < kTokens ? job.length - t : kTokens);
      }
      write_state(job);
    }
    write_sums(job);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::latent
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::latent {

namespace {

HWY_EXPORT(run_jobs);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_jobs)(*static_cast<Jobs*>(jobs)); }

}  // namespace

void run_latte(const LatteKernel& call, const kernels::Parallel& parallel) {
  constexpr int64_t kWorthAThread = 1 << 16;  // multiply-adds: below, waking a thread takes longer than the work
  Jobs jobs{&call, call.rows * call.heads, 0};
  const int64_t useful =
      call.rows * call.heads * (call.bounds ? 1 : call.tokens) * call.latents * call.values / kWorthAThread;
  const int64_t threads = call.bounds || useful > parallel.threads ? parallel.threads : useful;
  const int64_t workers = jobs.count < threads ? jobs.count : threads;
  workers > 1 ? parallel.run(workers, work, &jobs) : work(&jobs, 0);
}

}  // namespace cortado::latent
#endif
