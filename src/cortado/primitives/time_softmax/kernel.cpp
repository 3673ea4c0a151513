// The softmax over time in one pass, with channels in SIMD lanes; README.md, "The kernel". Compiled once per
// instruction set.
#include "cortado/primitives/time_softmax/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/time_softmax/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

#ifndef CORTADO_TIME_SOFTMAX_KERNEL_ONCE
#define CORTADO_TIME_SOFTMAX_KERNEL_ONCE
namespace cortado::softmax {
namespace {

struct Jobs {
  const SoftmaxKernel* call;
  int64_t vectors;  // per job
};

}  // namespace
}  // namespace cortado::softmax
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::softmax {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kVectors = 4;  // enough to hide a step's latency
// Tokens per chunk. From chunk to chunk α is scaled by the exp of a difference of maxima, so it is rounded once per
// chunk.
constexpr int64_t kChunk = 64;

// A few neighbouring channels of one row.
struct Strip {
  const SoftmaxKernel& in;
  int64_t row, channel, first, length;

  float* at(const Channels& x, int64_t token) const {
    return x.data + (in.bounds ? 0 : row) * x.row + (first + token) * x.token + channel;
  }
  int64_t state(int64_t v) const { return row * in.channels + channel + v * kLanes; }
};

// The maximum m, and α = Σ exp(θ_s - m) in two parts: what entered the chunk, scaled, and what the chunk added.
struct Channel {
  Vec m, carry, carried_from, scale, local;

  HWY_INLINE Vec alpha() const { return hn::MulAdd(scale, carry, local); }
  HWY_INLINE void start_chunk() {
    const Floats d;
    carry = alpha();
    carried_from = m;
    scale = hn::Set(d, 1.0f);
    local = hn::Zero(d);
  }
};

// `n` lanes are channels.
template <int kCount>
HWY_INLINE void softmax_vectors(const Strip& strip, int64_t n) {
  const Floats d;
  const SoftmaxKernel& in = strip.in;
  const Vec minus = hn::Neg(hn::Inf(d));
  Channel channels[kCount];
  for (int v = 0; v < kCount; ++v) {
    Channel& c = channels[v];
    c.scale = c.carry = hn::Zero(d);
    c.m = c.carried_from = in.initial_maximum ? load_some(in.initial_maximum + strip.state(v), n) : minus;
    c.local = in.initial_normalizer ? load_some(in.initial_normalizer + strip.state(v), n) : hn::Zero(d);
  }
  for (int64_t t = 0; t < strip.length; ++t) {
    const float* theta = strip.at(in.theta, t);
    float *keys = strip.at(in.keys, t), *gate = strip.at(in.gate, t), *maximum = strip.at(in.maximum, t);
    float* normalizer = strip.at(in.normalizer, t);
#pragma GCC unroll 4
    for (int v = 0; v < kCount; ++v) {
      Channel& c = channels[v];
      if (t % kChunk == 0) c.start_chunk();
      const Vec x = load_some(theta + v * kLanes, n), m = hn::Max(c.m, x);
      const Vec seen = hn::IfThenZeroElse(hn::Eq(m, minus), m);
      const Vec log = hn::Sub(c.m, seen), key = exp_of(d, hn::Sub(x, seen));
      if (hn::AllTrue(d, hn::Eq(m, c.m))) {
        c.local = hn::Add(c.local, key);
      } else {
        c.local = hn::MulAdd(exp_of(d, log), c.local, key);
        c.scale = exp_of(d, hn::Sub(c.carried_from, seen));
      }
      c.m = m;
      store_some(key, keys + v * kLanes, n);
      store_some(log, gate + v * kLanes, n);
      store_some(seen, maximum + v * kLanes, n);
      store_some(c.alpha(), normalizer + v * kLanes, n);
    }
  }
  for (int v = 0; v < kCount; ++v) {
    store_some(channels[v].m, in.last_maximum + strip.state(v), n);
    store_some(channels[v].alpha(), in.last_normalizer + strip.state(v), n);
  }
}

int64_t strips(const Jobs& jobs) { return (jobs.call->channels + jobs.vectors * kLanes - 1) / (jobs.vectors * kLanes); }

void run_strip(const Jobs& jobs, int64_t task) {
  const FlushDenormals guard;
  const SoftmaxKernel& in = *jobs.call;
  const int64_t row = task / strips(jobs), end = (task % strips(jobs) + 1) * jobs.vectors * kLanes;
  Strip strip{in, row, end - jobs.vectors * kLanes, in.bounds ? in.bounds[row] : 0,
              in.bounds ? in.bounds[row + 1] - in.bounds[row] : in.tokens};
  if (jobs.vectors == kVectors && end <= in.channels) return softmax_vectors<kVectors>(strip, kLanes);
  for (; strip.channel < end && strip.channel < in.channels; strip.channel += kLanes) {
    const int64_t left = in.channels - strip.channel;
    left < kLanes ? softmax_vectors<1>(strip, left) : softmax_vectors<1>(strip, kLanes);
  }
}

// Vectors per job such that every thread gets a job.
int64_t vectors_for(const SoftmaxKernel& in, int64_t threads) {
  return in.rows * in.channels < threads * kVectors * kLanes ? 1 : kVectors;
}

int64_t tasks(const Jobs& jobs) { return jobs.call->rows * strips(jobs); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::softmax
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::softmax {

namespace {

HWY_EXPORT(tasks);
HWY_EXPORT(vectors_for);
HWY_EXPORT(run_strip);

}  // namespace

void run_softmax(const SoftmaxKernel& call, const kernels::Parallel& parallel) {
  const Jobs jobs{&call, HWY_DYNAMIC_DISPATCH(vectors_for)(call, parallel.threads)};
  kernels::run_tasks(jobs, HWY_DYNAMIC_DISPATCH(tasks)(jobs), parallel, &HWY_DYNAMIC_DISPATCH(run_strip));
}

}  // namespace cortado::softmax
#endif
