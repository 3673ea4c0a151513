// The elementwise scan, channels in a vector's lanes; README.md, "The kernel". Compiled once for each instruction set.
#include "cortado/primitives/elementwise_scan/kernel.h"

#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/elementwise_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::elementwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kVectors = 4;  // side by side: enough to hide a step's latency
// Tokens between two carries. What goes from chunk to chunk is scaled by the exp of a sum of logs: one rounding a
// chunk.
constexpr int64_t kChunk = 64;

// Some neighbouring channels of one row, all its tokens in the order of time. Lanes beyond the last channel are neither
// read nor written.
struct Strip {
  const ScanKernel& in;
  int64_t row, channel, first, length;
  int64_t lanes[kVectors];  // of each vector: at most kLanes

  int64_t token(int64_t i) const { return in.reverse ? first + length - 1 - i : first + i; }
  float* at(const Channels& x, int64_t i) const {
    return x.data + (in.bounds ? 0 : row) * x.row + token(i) * x.token + channel;
  }
  const float* state(const float* states) const { return states ? states + row * in.channels + channel : nullptr; }
};

HWY_INLINE Vec load(const Strip& strip, const float* from, int v) {
  if (!from || strip.lanes[v] <= 0) return hn::Zero(Floats());
  return load_some(from + v * kLanes, strip.lanes[v]);
}

HWY_INLINE void store(const Strip& strip, Vec x, float* to, int v) {
  if (to && strip.lanes[v] > 0) store_some(x, to + v * kLanes, strip.lanes[v]);
}

// h = exp(log_a) h + b, in two levels: `local` from zero at the chunk's start, and what entered the chunk times the exp
// of the sum of the logs since.
struct Level {
  Vec local, sum, carry;

  HWY_INLINE void start(Vec state) {
    local = sum = hn::Zero(Floats());
    carry = state;
  }
  HWY_INLINE Vec step(Vec log_a, Vec a, Vec b) {
    const Floats d;
    local = hn::MulAdd(a, local, b);
    sum = hn::Add(sum, log_a);
    return hn::MulAdd(exp_of(d, sum), carry, local);
  }
};

void forward(const Strip& strip) {
  const Floats d;
  const ScanKernel& in = strip.in;
  Level level[kVectors];
  Vec h[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    h[v] = load(strip, strip.state(in.initial), v);
    level[v].start(h[v]);
  }
  for (int64_t i = 0; i < strip.length; ++i) {
    const float *log_a = strip.at(in.log_a, i), *b = strip.at(in.b, i);
    float* to = strip.at(in.h, i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (i % kChunk == 0) level[v].start(h[v]);
      const Vec log = load(strip, log_a, v);
      h[v] = level[v].step(log, exp_of(d, log), load(strip, b, v));
      store(strip, h[v], to, v);
    }
  }
  float* last = const_cast<float*>(strip.state(in.final_state));
  for (int v = 0; v < kVectors; ++v) store(strip, h[v], last, v);
}

// D_t = dh_t + a_{t+1} D_{t+1} from the last token to the first, beginning with the final state's gradient; db = D,
// dlog_a_t = D_t a_t h_{t-1}, dh_0 = a_1 D_1.
void backward(const Strip& strip) {
  const Floats d;
  const ScanKernel& in = strip.in;
  Level level[kVectors];
  Vec grad[kVectors], log[kVectors], a[kVectors];  // of the token after
  for (int v = 0; v < kVectors; ++v) {
    grad[v] = load(strip, strip.state(in.grad_final), v);
    level[v].start(grad[v]);
    log[v] = hn::Zero(d);
    a[v] = hn::Set(d, 1.0f);
  }
  for (int64_t i = strip.length - 1; i >= 0; --i) {
    const float *grad_h = strip.at(in.grad_h, i), *log_a = strip.at(in.log_a, i);
    const float* before = i > 0 ? strip.at(in.h, i - 1) : strip.state(in.initial);
    float *grad_log_a = strip.at(in.grad_log_a, i), *grad_b = strip.at(in.grad_b, i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if ((strip.length - 1 - i) % kChunk == 0) level[v].start(grad[v]);
      grad[v] = level[v].step(log[v], a[v], load(strip, grad_h, v));
      log[v] = load(strip, log_a, v);
      a[v] = exp_of(d, log[v]);
      store(strip, grad[v], grad_b, v);
      store(strip, hn::Mul(hn::Mul(grad[v], a[v]), load(strip, before, v)), grad_log_a, v);
    }
  }
  float* first = const_cast<float*>(strip.state(in.grad_initial));
  for (int v = 0; v < kVectors; ++v) store(strip, hn::Mul(grad[v], a[v]), first, v);
}

int64_t strips(const ScanKernel& in) { return (in.channels + kVectors * kLanes - 1) / (kVectors * kLanes); }

template <void (*kBody)(const Strip&)>
void run_strip(const ScanKernel& in, int64_t task) {
  const FlushDenormals guard;
  const int64_t row = task / strips(in), channel = task % strips(in) * kVectors * kLanes;
  Strip strip{
      in, row, channel, in.bounds ? in.bounds[row] : 0, in.bounds ? in.bounds[row + 1] - in.bounds[row] : in.tokens,
      {}};
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t left = in.channels - channel - v * kLanes;
    strip.lanes[v] = left < kLanes ? left : kLanes;
  }
  kBody(strip);
}

int64_t tasks(const ScanKernel& in) { return in.rows * strips(in); }
void forward_strip(const ScanKernel& in, int64_t task) { run_strip<forward>(in, task); }
void backward_strip(const ScanKernel& in, int64_t task) { run_strip<backward>(in, task); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::elementwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::elementwise {

namespace {

HWY_EXPORT(tasks);
HWY_EXPORT(forward_strip);
HWY_EXPORT(backward_strip);

}  // namespace

void run_forward(const ScanKernel& scan, const kernels::Parallel& parallel) {
  kernels::run_tasks(scan, HWY_DYNAMIC_DISPATCH(tasks)(scan), parallel, &HWY_DYNAMIC_DISPATCH(forward_strip));
}

void run_backward(const ScanKernel& scan, const kernels::Parallel& parallel) {
  kernels::run_tasks(scan, HWY_DYNAMIC_DISPATCH(tasks)(scan), parallel, &HWY_DYNAMIC_DISPATCH(backward_strip));
}

}  // namespace cortado::elementwise
#endif
