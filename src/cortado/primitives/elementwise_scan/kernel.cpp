// The elementwise scan, with channels in SIMD lanes; README.md, "The kernel". Compiled once per instruction set.
#include "cortado/primitives/elementwise_scan/kernel.h"

#include <algorithm>

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/elementwise_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/over_time.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::elementwise {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kVectors = 4;  // per strip: enough to hide a step's latency
// Tokens per chunk. From chunk to chunk the state is scaled by the exp of a sum of logs, so it is rounded once per
// chunk.
constexpr int64_t kChunk = 64;
constexpr int64_t kAhead = 16;

// A few neighbouring channels of one row, over all its tokens in order of time. Lanes beyond the last channel are
// neither read nor written.
struct Strip {
  const ScanKernel& in;
  int64_t row, channel, first, length;
  int64_t lanes[kVectors];  // per vector: at most kLanes
  int64_t ahead = 0;        // channels from here on that are prefetched

  int64_t token(int64_t i) const { return in.reverse ? first + length - 1 - i : first + i; }
  int64_t step(const Channels& x) const { return in.reverse ? -x.token : x.token; }
  float* at(const Channels& x, int64_t i) const {
    return x.data + (in.bounds ? 0 : row) * x.row + token(i) * x.token + channel;
  }
  const float* state(const float* states) const { return states ? states + row * in.channels + channel : nullptr; }
};

// Prefetches the values that are read kAhead tokens later.
HWY_INLINE void prefetch(const Strip& strip, const float* from, int64_t token_step) {
  prefetch_row(from + kAhead * token_step, strip.ahead);
}

HWY_INLINE Vec load(const Strip& strip, const float* from, int v) {
  if (!from || strip.lanes[v] <= 0) return hn::Zero(Floats());
  return load_some(from + v * kLanes, strip.lanes[v]);
}

HWY_INLINE void store(const Strip& strip, Vec x, float* to, int v) {
  if (!to || strip.lanes[v] <= 0) return;
  if (strip.in.past_caches) return hn::Stream(x, Floats(), to + v * kLanes);
  store_some(x, to + v * kLanes, strip.lanes[v]);
}

// h = exp(log_a) h + b in two levels: `local` starts from zero at the chunk's start; `carry` is the state that entered
// the chunk, times the product of the factors since. At the chunk's end the carry is scaled by the exp of the sum of
// logs instead of the product, so that roundings do not accumulate from chunk to chunk.
struct Level {
  Vec local, product, sum, carry;

  HWY_INLINE void start(Vec state) {
    local = sum = hn::Zero(Floats());
    product = hn::Set(Floats(), 1.0f);
    carry = state;
  }
  HWY_INLINE Vec step(Vec log_a, Vec a, Vec b) {
    local = hn::MulAdd(a, local, b);
    product = hn::Mul(a, product);
    sum = hn::Add(sum, log_a);
    return hn::MulAdd(product, carry, local);
  }
  HWY_INLINE Vec end() const { return hn::MulAdd(exp_of(Floats(), sum), carry, local); }
};

// A strip's pass over its tokens, chunk by chunk; i counts in the pass's order. `state` is carried from chunk to chunk.
struct Forward {
  Vec state[kVectors];

  void begin(const Strip& strip) {
    for (int v = 0; v < kVectors; ++v) state[v] = load(strip, strip.state(strip.in.initial), v);
  }
  void enter(const Strip&, int64_t) {}

  template <bool kWrite>
  void walk(const Strip& strip, int64_t first, int64_t end, Level* level) {
    const Floats d;
    const ScanKernel& in = strip.in;
    for (int64_t i = first; i < end; ++i) {
      const float *log_a = strip.at(in.log_a, i), *b = strip.at(in.b, i);
      float* to = strip.at(in.h, i);
      prefetch(strip, log_a, strip.step(in.log_a));
      prefetch(strip, b, strip.step(in.b));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vec log = load(strip, log_a, v), h = level[v].step(log, exp_of(d, log), load(strip, b, v));
        if (kWrite) store(strip, h, to, v);
      }
    }
  }

  void end(const Strip& strip) const {
    float* last = const_cast<float*>(strip.state(strip.in.final_state));
    for (int v = 0; v < kVectors; ++v) store(strip, state[v], last, v);
  }
};

// D_t = dh_t + a_{t+1} D_{t+1} from the last token to the first, starting with the final state's gradient; db = D,
// dlog_a_t = D_t a_t h_{t-1}, dh_0 = a_1 D_1.
struct Backward {
  Vec state[kVectors], log[kVectors], a[kVectors];  // ∂L/∂h; log and a of the next token

  void begin(const Strip& strip) {
    for (int v = 0; v < kVectors; ++v) state[v] = load(strip, strip.state(strip.in.grad_final), v);
    enter(strip, 0);
  }
  void enter(const Strip& strip, int64_t first) {
    for (int v = 0; v < kVectors; ++v) {
      log[v] = first == 0 ? hn::Zero(Floats()) : load(strip, strip.at(strip.in.log_a, strip.length - first), v);
      a[v] = exp_of(Floats(), log[v]);
    }
  }

  template <bool kWrite>
  void walk(const Strip& strip, int64_t first, int64_t end, Level* level) {
    const Floats d;
    const ScanKernel& in = strip.in;
    for (int64_t i = strip.length - 1 - first; i >= strip.length - end; --i) {
      const float *grad_h = strip.at(in.grad_h, i), *log_a = strip.at(in.log_a, i);
      const float* before = i > 0 ? strip.at(in.h, i - 1) : strip.state(in.initial);
      float *grad_log_a = strip.at(in.grad_log_a, i), *grad_b = strip.at(in.grad_b, i);
      prefetch(strip, grad_h, -strip.step(in.grad_h));
      prefetch(strip, log_a, -strip.step(in.log_a));
      if (kWrite) prefetch(strip, strip.at(in.h, i), -strip.step(in.h));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const Vec grad = level[v].step(log[v], a[v], load(strip, grad_h, v));
        log[v] = load(strip, log_a, v);
        a[v] = exp_of(d, log[v]);
        if (!kWrite) continue;
        store(strip, grad, grad_b, v);
        store(strip, hn::Mul(hn::Mul(grad, a[v]), load(strip, before, v)), grad_log_a, v);
      }
    }
  }

  void end(const Strip& strip) const {
    float* first = const_cast<float*>(strip.state(strip.in.grad_initial));
    for (int v = 0; v < kVectors; ++v) store(strip, hn::Mul(state[v], a[v]), first, v);
  }
};

constexpr int64_t kStrip = kVectors * kLanes;

Strip strip_at(const ScanKernel& in, int64_t row, int64_t channel) {
  Strip strip{
      in, row, channel, in.bounds ? in.bounds[row] : 0, in.bounds ? in.bounds[row + 1] - in.bounds[row] : in.tokens,
      {}};
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t left = in.channels - channel - v * kLanes;
    strip.lanes[v] = left < kLanes ? left : kLanes;
  }
  return strip;
}

int64_t strips(const ScanKernel& in) { return (in.channels + kStrip - 1) / kStrip; }

// Floats needed for the passages of all chunks.
int64_t passages_size(const ScanKernel& in) { return in.rows * divided(in.tokens, kChunk) * strips(in) * 2 * kStrip; }

// Neighbouring strips of a row over one part of its time, chunk by chunk. A task reads as many channels of a token as
// possible at once, because memory is slow if a little is read from each of many pages.
template <class Pass>
struct Task {
  const ScanKernel& in;
  int64_t row, part, begin, count;  // strips from `begin` on
  Pass pass[kMostTogether];

  Task(const ScanKernel& scan, int64_t task) : in(scan) {
    const int64_t all = strips(in), groups = (all + in.together - 1) / in.together, group = task / in.parts % groups;
    part = task % in.parts;
    row = task / in.parts / groups;
    begin = group * in.together;
    count = all - begin < in.together ? all - begin : in.together;
  }

  // Calls work(the strip's pass, the strip, its number) for every strip.
  template <class Work>
  HWY_INLINE void each(const Work& work) {
    for (int64_t i = 0; i < count; ++i) {
      Strip strip = strip_at(in, row, (begin + i) * kStrip);
      if (i == 0) strip.ahead = std::min(count * kStrip, in.channels - begin * kStrip);
      work(pass[i], strip, begin + i);
    }
  }

  // Calls work(chunk number, first token, end) for every chunk of the part.
  template <class Work>
  HWY_INLINE void each_chunk(const Work& work) const {
    const int64_t length = strip_at(in, row, 0).length, chunks = divided(length, kChunk);
    for (int64_t chunk = part * chunks / in.parts; chunk < (part + 1) * chunks / in.parts; ++chunk) {
      work(chunk, chunk * kChunk, std::min(length, (chunk + 1) * kChunk));
    }
  }

  // How chunk `chunk` changes a strip's state: state times the first kStrip numbers, plus the following ones.
  float* passage(int64_t chunk, int64_t strip) const {
    const int64_t chunks = divided(in.tokens, kChunk);
    return in.passages + ((row * chunks + chunk) * strips(in) + strip) * 2 * kStrip;
  }
};

// Advances the state from before the first token to the start of the task's part, by the passages of the chunks in
// between.
template <class Pass>
void pass_to_part(Task<Pass>& task) {
  const Floats d;
  const int64_t chunks = task.part * divided(task.in.tokens, kChunk) / task.in.parts;
  task.each([&](Pass& one, const Strip& strip, int64_t i) HWY_ATTR {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* passed = task.passage(chunk, i);
      for (int v = 0; v < kVectors; ++v, passed += kLanes) {
        one.state[v] = hn::MulAdd(hn::Load(d, passed), one.state[v], hn::Load(d, passed + kStrip));
      }
    }
    one.enter(strip, chunks * kChunk);
  });
}

template <class Pass>
void run_strips(const ScanKernel& in, int64_t number) {
  const FlushDenormals guard;
  Task<Pass> task(in, number);
  task.each([](Pass& one, const Strip& strip, int64_t) HWY_ATTR { one.begin(strip); });
  if (task.part > 0) pass_to_part(task);
  task.each_chunk([&](int64_t, int64_t first, int64_t end) HWY_ATTR {
    task.each([&](Pass& one, const Strip& strip, int64_t) HWY_ATTR {
      Level level[kVectors];
      for (int v = 0; v < kVectors; ++v) level[v].start(one.state[v]);
      one.template walk<true>(strip, first, end, level);
      for (int v = 0; v < kVectors; ++v) one.state[v] = level[v].end();
    });
  });
  if (task.part == in.parts - 1) {
    task.each([](Pass& one, const Strip& strip, int64_t) HWY_ATTR { one.end(strip); });
  }
  if (in.past_caches) hwy::FlushStream();
}

template <class Pass>
void find_passages(const ScanKernel& in, int64_t number) {
  const Floats d;
  const FlushDenormals guard;
  Task<Pass> task(in, number);
  if (task.part == in.parts - 1) return;  // no part follows
  task.each_chunk([&](int64_t chunk, int64_t first, int64_t end) HWY_ATTR {
    task.each([&](Pass& one, const Strip& strip, int64_t i) HWY_ATTR {
      Level level[kVectors];
      one.enter(strip, first);
      for (int v = 0; v < kVectors; ++v) level[v].start(hn::Zero(d));
      one.template walk<false>(strip, first, end, level);
      float* passed = task.passage(chunk, i);
      for (int v = 0; v < kVectors; ++v, passed += kLanes) {
        hn::Store(exp_of(d, level[v].sum), d, passed);
        hn::Store(level[v].local, d, passed + kStrip);
      }
    });
  });
}

void forward_strips(const ScanKernel& in, int64_t task) { run_strips<Forward>(in, task); }
void backward_strips(const ScanKernel& in, int64_t task) { run_strips<Backward>(in, task); }
void forward_passages(const ScanKernel& in, int64_t task) { find_passages<Forward>(in, task); }
void backward_passages(const ScanKernel& in, int64_t task) { find_passages<Backward>(in, task); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::elementwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::elementwise {

namespace {

HWY_EXPORT(strips);
HWY_EXPORT(passages_size);
HWY_EXPORT(forward_strips);
HWY_EXPORT(backward_strips);
HWY_EXPORT(forward_passages);
HWY_EXPORT(backward_passages);

// Chooses the tasks. A task is a group of neighbouring strips over a part of time, so that memory is read row by row;
// groups are as large as possible with at least one per thread. With fewer strips than half the threads, time is split
// as well, and every chunk is then read twice. Results are bit-identical.
void share_out(ScanKernel& scan, int64_t strips, int64_t threads) {
  constexpr int64_t kShortest = 1024, kLeast = 128, kTasksAThread = 2;  // tokens worth splitting; of a part
  const int64_t tasks = scan.rows * strips, parts = scan.tokens < kShortest ? 1 : scan.tokens / kLeast;
  const auto groups = [&] { return scan.rows * ((strips + scan.together - 1) / scan.together); };
  if (tasks == 0 || 2 * tasks > threads || scan.bounds) {
    scan.together = std::clamp<int64_t>(tasks / threads, 1, std::min(strips, kMostTogether));
    return;
  }
  scan.together = std::min(strips, kMostTogether);
  while (scan.together > 1 && groups() * parts < kTasksAThread * threads) scan.together = (scan.together + 1) / 2;
  scan.parts = std::clamp<int64_t>(kTasksAThread * threads / groups(), 1, parts);
}

template <class Body>
void run(ScanKernel scan, const kernels::Parallel& parallel, Body find_passages, Body body) {
  const int64_t strips = HWY_DYNAMIC_DISPATCH(strips)(scan);
  scan.past_caches = kernels::goes_past_caches(scan.rows * scan.tokens * scan.channels, scan.channels);
  share_out(scan, strips, parallel.threads);
  const int64_t count = scan.parts * scan.rows * ((strips + scan.together - 1) / scan.together);
  if (scan.parts == 1) return kernels::run_tasks(scan, count, parallel, body);
  const kernels::Shared memory(HWY_DYNAMIC_DISPATCH(passages_size)(scan));
  scan.passages = memory.data();
  kernels::run_tasks(scan, count, parallel, find_passages);
  kernels::run_tasks(scan, count, parallel, body);
}

}  // namespace

void run_forward(const ScanKernel& scan, const kernels::Parallel& parallel) {
  run(scan, parallel, &HWY_DYNAMIC_DISPATCH(forward_passages), &HWY_DYNAMIC_DISPATCH(forward_strips));
}

void run_backward(const ScanKernel& scan, const kernels::Parallel& parallel) {
  run(scan, parallel, &HWY_DYNAMIC_DISPATCH(backward_passages), &HWY_DYNAMIC_DISPATCH(backward_strips));
}

}  // namespace cortado::elementwise
#endif
