// Compiled once per instruction set.
#include "cortado/bench/kernel.h"

#ifndef CORTADO_BENCH_STREAM
#define CORTADO_BENCH_STREAM
namespace cortado::bench {
namespace {

struct Stream {
  float* out;
  const float *a, *b;
  int64_t n;  // per thread
  bool past_caches;
};

}  // namespace
}  // namespace cortado::bench
#endif

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/bench/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/cache_control.h>

#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels::HWY_NAMESPACE;

// Results go here so that the compiler cannot remove their computation.
thread_local volatile float sink;

// Twelve independent sums: two FMA units with a latency of four cycles need at least eight.
void fma(int64_t rounds) {
  const Floats d;
  constexpr int kSums = 12;
  Vec sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = hn::Set(d, 0.01f * static_cast<float>(i + 1));
  const Vec factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sum[i] = hn::MulAdd(sum[i], factor, term);
  }
  Vec all = sum[0];
  for (int i = 1; i < kSums; ++i) all = hn::Add(all, sum[i]);
  sink = hn::GetLane(hn::SumOfLanes(d, all));
}

void exps(int64_t rounds) {
  const Floats d;
  HWY_ALIGN float block[kExpBlock];
  for (int64_t i = 0; i < kExpBlock; ++i) block[i] = -1.0f - static_cast<float>(i % 7);
  for (int64_t r = 0; r < rounds; ++r) {
    for (int64_t i = 0; i < kExpBlock; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        hn::Store(hn::Neg(exp_of(d, hn::Load(d, block + i + v * kLanes))), d, block + i + v * kLanes);
      }
    }
  }
  sink = block[rounds % kExpBlock];
}

void read(const Stream& stream, int64_t thread) {
  const Floats d;
  constexpr int kSums = 8;
  Vec sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = hn::Zero(d);
  const float* from = stream.a + thread * stream.n;
  for (const float* end = from + stream.n; from + kSums * kLanes <= end; from += kSums * kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) sum[i] = hn::Add(sum[i], hn::Load(d, from + i * kLanes));
  }
  Vec all = sum[0];
  for (int i = 1; i < kSums; ++i) all = hn::Add(all, sum[i]);
  sink = hn::GetLane(hn::SumOfLanes(d, all));
}

void triad(const Stream& stream, int64_t thread) {
  const Floats d;
  const Vec three = hn::Set(d, 3.0f);
  const int64_t begin = thread * stream.n, end = begin + stream.n;
  for (int64_t i = begin; i < end; i += kLanes) {
    const Vec x = hn::MulAdd(hn::Load(d, stream.b + i), three, hn::Load(d, stream.a + i));
    if (stream.past_caches) {
      hn::Stream(x, d, stream.out + i);
    } else {
      hn::Store(x, d, stream.out + i);
    }
  }
  hwy::FlushStream();
}

int64_t lanes_of() { return kLanes; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::bench {

namespace {

HWY_EXPORT(fma);
HWY_EXPORT(exps);
HWY_EXPORT(read);
HWY_EXPORT(triad);
HWY_EXPORT(lanes_of);

void fma_work(void* rounds, int64_t) { HWY_DYNAMIC_DISPATCH(fma)(*static_cast<int64_t*>(rounds)); }
void exp_work(void* rounds, int64_t) { HWY_DYNAMIC_DISPATCH(exps)(*static_cast<int64_t*>(rounds)); }
void read_work(void* stream, int64_t thread) { HWY_DYNAMIC_DISPATCH(read)(*static_cast<Stream*>(stream), thread); }
void triad_work(void* stream, int64_t thread) { HWY_DYNAMIC_DISPATCH(triad)(*static_cast<Stream*>(stream), thread); }

}  // namespace

void fma_loop(const kernels::Parallel& parallel, int64_t rounds) { parallel.run(parallel.threads, fma_work, &rounds); }
void exp_loop(const kernels::Parallel& parallel, int64_t rounds) { parallel.run(parallel.threads, exp_work, &rounds); }

void read_loop(const kernels::Parallel& parallel, const float* from, int64_t n) {
  Stream stream{nullptr, from, nullptr, n / parallel.threads, false};
  parallel.run(parallel.threads, read_work, &stream);
}

void triad_loop(const kernels::Parallel& parallel, float* out, const float* a, const float* b, int64_t n,
                bool past_caches) {
  Stream stream{out, a, b, n / parallel.threads, past_caches};
  parallel.run(parallel.threads, triad_work, &stream);
}

int64_t lanes() { return HWY_DYNAMIC_DISPATCH(lanes_of)(); }

}  // namespace cortado::bench
#endif
