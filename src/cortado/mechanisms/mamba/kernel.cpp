// A vector holds kLanes channels; their states lie one vector after the other. Compiled once per instruction set.
#include "cortado/mechanisms/mamba/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/mechanisms/mamba/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::mamba_kernel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

constexpr int64_t kChunk = 32;  // tokens whose states the backward pass holds at a time

// kLanes channels of one row, from `channel` on. Lanes beyond the last channel read zeros and are not written.
struct Strip {
  const SelectiveScan& in;
  int64_t row, channel, lanes, size;  // size: floats of the strip's states, N · kLanes

  Strip(const SelectiveScan& call, int64_t which_row, int64_t first)
      : in(call),
        row(which_row),
        channel(first),
        lanes(call.channels - first < kLanes ? call.channels - first : kLanes),
        size(call.states * kLanes) {}

  float* at(const Channels& x, int64_t token) const { return x.data + row * x.row + token * x.token; }
  Vec load(const Channels& x, int64_t token) const { return load_some(at(x, token) + channel, lanes); }
  void store(Vec y, const Channels& x, int64_t token) const { store_some(y, at(x, token) + channel, lanes); }

  // Transposes a row's states between [E,N] and [N, kLanes]. A null `from` stands for zeros; a null `to` is not
  // written.
  void read_states(const float* from, float* to) const {
    fill(to, size, 0);
    for (int64_t i = 0; from && i < lanes; ++i) {
      copy_elements(from + (channel + i) * in.states, 1, to + i, kLanes, in.states);
    }
  }
  void write_states(const float* from, float* to) const {
    for (int64_t i = 0; to && i < lanes; ++i) {
      copy_elements(from + i, kLanes, to + (channel + i) * in.states, 1, in.states);
    }
  }
  template <class T>
  T* row_states(T* states) const {
    return states ? states + row * in.channels * in.states : nullptr;
  }
};

// Advances one token, from the state h to `next`, which may be h. Calls each(n, factor, state) for every n < N.
template <class Each>
HWY_INLINE void advance(const Strip& strip, int64_t token, const float* a, const float* h, float* next,
                        const Each& each) {
  const Floats d;
  const Vec step = strip.load(strip.in.step, token), write = hn::Mul(step, strip.load(strip.in.x, token));
  const float* b = strip.at(strip.in.b, token);
  for (int64_t n = 0; n < strip.in.states; ++n) {
    const Vec factor = exp_of(d, hn::Mul(step, hn::Load(d, a + n * kLanes)));
    const Vec now = hn::MulAdd(factor, hn::Load(d, h + n * kLanes), hn::Mul(write, hn::Set(d, b[n])));
    hn::Store(now, d, next + n * kLanes);
    each(n, factor, now);
  }
}

// A task is one strip.
void forward_task(const SelectiveScan& call, int64_t task) {
  const FlushDenormals guard;
  const Floats d;
  Scratch scratch;
  const int64_t strips = (call.channels + kLanes - 1) / kLanes;
  const Strip strip(call, task / strips, task % strips * kLanes);
  float *a = scratch.take(strip.size), *h = scratch.take(strip.size);
  strip.read_states(call.a, a);
  strip.read_states(strip.row_states(call.start), h);
  for (int64_t t = 0; t < call.tokens; ++t) {
    const float* c = strip.at(call.c, t);
    Vec y = hn::Zero(d);
    advance(strip, t, a, h, h, [&](int64_t n, Vec, Vec now) HWY_ATTR { y = hn::MulAdd(now, hn::Set(d, c[n]), y); });
    strip.store(y, call.y, t);
  }
  strip.write_states(h, strip.row_states(call.last));
}

// Memory of the backward pass for a part's strips.
struct Memory {
  float *a, *grad, *da;     // [strips, N, kLanes]: A, the state's gradient, A's gradient
  float* starts;            // [chunks, strips, N, kLanes]: the state before each chunk
  float *states, *factors;  // [kChunk + 1, N, kLanes], [kChunk, N, kLanes]
  float *db, *dc;           // [kChunk, N, kLanes]: summed over the strips so far
};

// Computes the strip's states before every chunk.
void keep_starts(const Strip& strip, int64_t strips, const float* a, float* starts) {
  const int64_t tokens = strip.in.tokens;
  strip.read_states(strip.row_states(strip.in.start), starts);
  for (int64_t first = 0; first + kChunk < tokens; first += kChunk, starts += strips * strip.size) {
    float* next = starts + strips * strip.size;
    copy(starts, strip.size, next);
    for (int64_t t = first; t < first + kChunk; ++t) advance(strip, t, a, next, next, [](int64_t, Vec, Vec) {});
  }
}

// Computes one token's gradients. of_token.states are those before the token, followed by those after it.
HWY_INLINE void differentiate(const Strip& strip, int64_t t, const Memory& of_token) {
  const Floats d;
  const auto [a, grad, da, starts, h, factors, db, dc] = of_token;
  const SelectiveScan& in = strip.in;
  const Vec step = strip.load(in.step, t), x = strip.load(in.x, t), dy = strip.load(in.dy, t);
  const Vec write = hn::Mul(step, x);
  const float *b = strip.at(in.b, t), *c = strip.at(in.c, t), *after = h + strip.size;
  Vec dwrite = hn::Zero(d), dstep = hn::Zero(d);
  for (int64_t n = 0; n < in.states; ++n) {
    const int64_t at = n * kLanes;
    const Vec g = hn::MulAdd(dy, hn::Set(d, c[n]), hn::Load(d, grad + at)), factor = hn::Load(d, factors + at);
    const Vec decayed = hn::Mul(g, factor), dlog = hn::Mul(decayed, hn::Load(d, h + at));
    hn::Store(hn::MulAdd(dy, hn::Load(d, after + at), hn::Load(d, dc + at)), d, dc + at);
    hn::Store(hn::MulAdd(g, write, hn::Load(d, db + at)), d, db + at);
    hn::Store(hn::MulAdd(dlog, step, hn::Load(d, da + at)), d, da + at);
    hn::Store(decayed, d, grad + at);
    dwrite = hn::MulAdd(g, hn::Set(d, b[n]), dwrite);
    dstep = hn::MulAdd(dlog, hn::Load(d, a + at), dstep);
  }
  strip.store(hn::Mul(dwrite, step), in.dx, t);
  strip.store(hn::MulAdd(dwrite, x, dstep), in.dstep, t);
}

// Computes the gradients of tokens first..end-1 of one strip, after recomputing their states.
void differentiate_chunk(const Strip& strip, int64_t first, int64_t end, const float* start, const Memory& of_strip) {
  const Floats d;
  copy(start, strip.size, of_strip.states);
  for (int64_t t = first; t < end; ++t) {
    float* h = of_strip.states + (t - first) * strip.size;
    float* factors = of_strip.factors + (t - first) * strip.size;
    advance(strip, t, of_strip.a, h, h + strip.size,
            [&](int64_t n, Vec factor, Vec) HWY_ATTR { hn::Store(factor, d, factors + n * kLanes); });
  }
  for (int64_t t = end - 1; t >= first; --t) {
    Memory of_token = of_strip;
    for (float** each : {&of_token.states, &of_token.factors, &of_token.db, &of_token.dc})
      *each += (t - first) * strip.size;
    differentiate(strip, t, of_token);
  }
}

// Sums [tokens, N, kLanes] over the lanes: [tokens, N].
void add_lanes(const float* from, int64_t count, float* to) {
  const Floats d;
  for (int64_t i = 0; i < count; ++i) to[i] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, from + i * kLanes)));
}

Memory take_memory(const SelectiveScan& call, int64_t strips, int64_t size, Scratch& scratch) {
  const int64_t chunks = (call.tokens + kChunk - 1) / kChunk;
  Memory memory{};
  for (float** part : {&memory.a, &memory.grad, &memory.da}) *part = scratch.take(strips * size);
  memory.starts = scratch.take(chunks * strips * size);
  memory.states = scratch.take((kChunk + 1) * size);
  for (float** part : {&memory.factors, &memory.db, &memory.dc}) *part = scratch.take(kChunk * size);
  fill(memory.da, strips * size, 0);
  return memory;
}

// A task is one part of a row's channels.
void backward_task(const SelectiveScan& call, int64_t task) {
  const FlushDenormals guard;
  Scratch scratch;
  const int64_t count = parts(call.channels), row = task / count, part = task % count;
  const int64_t from = part * part_channels(call.channels), width = part_channels(call.channels);
  const int64_t to = from + width < call.channels ? from + width : call.channels;
  const int64_t strips = (to - from + kLanes - 1) / kLanes, size = call.states * kLanes;
  const Memory memory = take_memory(call, strips, size, scratch);
  for (int64_t s = 0; s < strips; ++s) {
    const Strip strip(call, row, from + s * kLanes);
    strip.read_states(call.a, memory.a + s * size);
    strip.read_states(strip.row_states(call.dlast), memory.grad + s * size);
    keep_starts(strip, strips, memory.a + s * size, memory.starts + s * size);
  }
  const int64_t last = (call.tokens - 1) / kChunk * kChunk;
  for (int64_t first = last; first >= 0; first -= kChunk) {
    const int64_t end = first + kChunk < call.tokens ? first + kChunk : call.tokens;
    fill(memory.db, kChunk * size, 0);
    fill(memory.dc, kChunk * size, 0);
    for (int64_t s = 0; s < strips; ++s) {
      Memory of_strip = memory;
      for (float** each : {&of_strip.a, &of_strip.grad, &of_strip.da}) *each += s * size;
      differentiate_chunk(Strip(call, row, from + s * kLanes), first, end,
                          memory.starts + (first / kChunk * strips + s) * size, of_strip);
    }
    const int64_t at = (task * call.tokens + first) * call.states;
    add_lanes(memory.db, (end - first) * call.states, call.db_parts + at);
    add_lanes(memory.dc, (end - first) * call.states, call.dc_parts + at);
  }
  for (int64_t s = 0; s < strips; ++s) {
    const Strip strip(call, row, from + s * kLanes);
    strip.write_states(memory.grad + s * size, strip.row_states(call.dstart));
    strip.write_states(memory.da + s * size, strip.row_states(call.da));
  }
}

int64_t forward_tasks(const SelectiveScan& call) { return call.batch * ((call.channels + kLanes - 1) / kLanes); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::mamba_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::mamba_kernel {

namespace {

HWY_EXPORT(forward_task);
HWY_EXPORT(forward_tasks);
HWY_EXPORT(backward_task);

}  // namespace

void selective_scan(const SelectiveScan& call, const Parallel& parallel) {
  kernels::run_tasks(call, HWY_DYNAMIC_DISPATCH(forward_tasks)(call), parallel, &HWY_DYNAMIC_DISPATCH(forward_task));
}

void selective_scan_backward(const SelectiveScan& call, const Parallel& parallel) {
  kernels::run_tasks(call, call.batch * parts(call.channels), parallel, &HWY_DYNAMIC_DISPATCH(backward_task));
}

}  // namespace cortado::mamba_kernel
#endif
