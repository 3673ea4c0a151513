// Latte in tiles of 16 tokens, none of which has decays inside; README.md, "The kernel". Compiled once for each
// instruction set.
#include "cortado/primitives/latte_scan/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/latte_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/latte_scan/gradient-inl.h"
#include "cortado/primitives/latte_scan/tile-inl.h"

#ifndef CORTADO_LATTE_SCAN_KERNEL_ONCE
#define CORTADO_LATTE_SCAN_KERNEL_ONCE
namespace cortado::latent {
namespace {

// The work of all threads: heads of rows, taken one after the other.
struct Jobs {
  const LatteKernel* call;
  const LatteGradients* gradients;  // of the backward
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
  read_tile(in.theta, at, 0, in.latents, 1, job.x, job.keys);
  read_tile(in.query, at, 0, in.latents, 1, job.y, job.keys);
  read_tile(in.v, at, 0, in.values, 1, job.v, job.values);
  find_top(job, 1, job.sums);
  write_keys(job, 1, job.sums, job.sums);
  write_queries<false>(job, 1);
  const float* from = in.state.data ? state_address(job, in.state, in.values) : nullptr;
  float* to = job.head % in.last_state.repeat == 0 ? state_address(job, in.last_state, in.values) : nullptr;
  int64_t j = 0;
  for (; j + 4 * kLanes <= in.values; j += 4 * kLanes) step_columns<4>(job, from, to, j, kLanes);
  for (; j + kLanes <= in.values; j += kLanes) step_columns<1>(job, from, to, j, kLanes);
  if (j < in.values) step_columns<1>(job, from, to, j, in.values - j);
  write_tile(job.o, job.values, in.o, at, 0, in.values);
}

void run_forward(const Job& job) {
  read_sums(job, job.sums);
  if (job.length == 1) {
    step(job);
  } else {
    read_state(job, job.in.state, job.sums.state);
    for (int64_t t = 0; t < job.length; t += kTokens) {
      run_tile<true>(job, t, job.length - t < kTokens ? job.length - t : kTokens, job.sums, job.sums);
    }
    write_state(job, job.sums.state, job.in.last_state);
  }
  write_latents(job, job.sums.alpha, job.in.last_normalizer);
  write_latents(job, job.sums.maximum, job.in.last_maximum);
}

void run_jobs(Jobs& jobs) {
  const LatteKernel& in = *jobs.call;
  const FlushDenormals guard;
  Fetcher fetcher;
  Scratch scratch;
  Reverse job{{{.keys = round_up(in.latents, 16), .values = round_up(in.values, kLanes), .fetcher = &fetcher}, in}};
  job.out = jobs.gradients;
  job.out ? lay_out_reverse(job, scratch) : lay_out(job, scratch);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    place(job, i);
    job.out ? run_backward(job) : run_forward(job);
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

void run(const LatteKernel& call, const LatteGradients* gradients, const kernels::Parallel& parallel) {
  Jobs jobs{&call, gradients, call.rows * call.heads, 0};
  const int64_t workers = jobs.count < parallel.threads ? jobs.count : parallel.threads;
  workers > 1 ? parallel.run(workers, work, &jobs) : work(&jobs, 0);
}

}  // namespace

void run_latte(const LatteKernel& call, const kernels::Parallel& parallel) { run(call, nullptr, parallel); }

void run_latte_backward(const LatteKernel& call, const LatteGradients& gradients, const kernels::Parallel& parallel) {
  run(call, &gradients, parallel);
}

}  // namespace cortado::latent
#endif
