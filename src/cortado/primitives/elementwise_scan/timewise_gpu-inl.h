// Operations that walk through time channel by channel: one thread per channel, and per part of time if there are few
// channels. Three kernels: summarize each part starting from a neutral carry, join the parts, walk through all of them
// again. An operation defines
//   Carry                      what passes from token to token
//   Carry nothing(), Carry initial_of(at), void finish(at, carry)   the neutral one, the first, the last
//   Input load(at, t)          reads token t of a place `at`; kAhead of them are fetched at once
//   void absorb(carry, input)  adds one token, for the summary
//   Carry join(before, part)   a part after what came before
//   void step(carry, input, at, t)   computes one token with all results
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/elementwise_scan/timewise_gpu.h"

namespace cortado::timewise {

using namespace device;

// One channel of one row.
struct Place {
  int row, channel, tokens;
  long long batch, first;
  bool there;
  DEV float* at(const GpuChannels& x, int t) const {
    return x.data + batch * x.batch + (first + t) * x.token + channel;
  }
};

DEV Place place_of(const GpuTimes& times, int row, int channel) {
  Place place;
  place.row = row;
  place.channel = channel;
  place.there = place.channel < times.channels;
  place.batch = times.bounds ? 0 : row;
  place.first = times.bounds ? times.bounds[row] : 0;
  place.tokens = times.bounds ? static_cast<int>(times.bounds[row + 1] - place.first) : times.tokens;
  return place;
}

DEV int channel_of_thread() { return blockIdx.x * kGpuTimewiseThreads + CORTADO_THREAD; }

// The number of parts of a row: no more than its tokens fill, whatever the other rows have.
DEV int parts_of(const GpuTimes& times, const Place& at) {
  const int wanted = (at.tokens + times.part_tokens - 1) / times.part_tokens;
  return wanted < times.parts ? (wanted > 1 ? wanted : 1) : times.parts;
}

template <typename Op, typename Each>
DEV void each_token(const Op& op, const GpuTimes& times, const Place& at, int part, const Each& work) {
  const int parts = parts_of(times, at);
  const int each = (at.tokens + parts - 1) / parts, begin = part * each, behind = begin + each;
  const int end = behind < at.tokens ? behind : at.tokens;
  for (int p = begin; p < end; p += Op::kAhead) {
    typename Op::Input inputs[Op::kAhead];
    UNROLL for (int i = 0; i < Op::kAhead; ++i) {
      const int now = p + i < end ? p + i : end - 1;
      inputs[i] = op.load(at, times.reverse ? at.tokens - 1 - now : now);
    }
    UNROLL for (int i = 0; i < Op::kAhead; ++i) {
      if (p + i < end) work(inputs[i], times.reverse ? at.tokens - 1 - (p + i) : p + i);
    }
  }
}

template <typename Carry>
DEV Carry* carry_of(const GpuTimes& times, const Place& at, int part) {
  return reinterpret_cast<Carry*>(times.carries) +
         (static_cast<long long>(at.row) * times.parts + part) * times.channels + at.channel;
}

template <typename Op>
DEV void summarize(const Op& op, const GpuTimes& times) {
  const Place at = place_of(times, blockIdx.z, channel_of_thread());
  if (!at.there) return;
  auto carry = op.nothing();
  each_token(op, times, at, blockIdx.y, [&](const typename Op::Input& input, int) { op.absorb(carry, input); });
  *carry_of<typename Op::Carry>(times, at, blockIdx.y) = carry;
}

// Calls work(summary, place) for the parts begin .. end. Several are fetched before the first is processed, because a
// write might alias the next read.
template <typename Carry, typename Each>
DEV void each_part(const GpuTimes& times, const Place& at, int begin, int end, const Each& work) {
  constexpr int kAhead = 8;
  for (int part = begin; part < end; part += kAhead) {
    Carry summaries[kAhead];
    UNROLL for (int i = 0; i < kAhead; ++i) {
      summaries[i] = *carry_of<Carry>(times, at, part + i < end ? part + i : end - 1);
    }
    UNROLL for (int i = 0; i < kAhead; ++i) {
      if (part + i < end) work(summaries[i], carry_of<Carry>(times, at, part + i));
    }
  }
}

// A lane has a channel, and a warp some of its parts: it joins its own parts, then again after those of the preceding
// warps.
template <typename Op>
DEV void join(const Op& op, const GpuTimes& times) {
  using Carry = typename Op::Carry;
  const int lane = CORTADO_THREAD & 31, warp = CORTADO_THREAD >> 5;
  const Place at = place_of(times, blockIdx.y, blockIdx.x * 32 + lane);
  const int parts = parts_of(times, at), each = (parts + kGpuJoinWarps - 1) / kGpuJoinWarps;
  const int begin = warp * each, behind = begin + each, end = behind < parts ? behind : parts;
  auto* const sums = reinterpret_cast<Carry*>(shared_memory());
  auto carry = op.nothing();
  if (at.there) {
    each_part<Carry>(times, at, begin, end, [&](Carry summary, Carry*) { carry = op.join(carry, summary); });
  }
  sums[CORTADO_THREAD] = carry;
  __syncthreads();
  if (!at.there) return;
  carry = op.initial_of(at);
  for (int before = 0; before < warp; ++before) carry = op.join(carry, sums[before * 32 + lane]);
  each_part<Carry>(times, at, begin, end, [&](Carry summary, Carry* there) {
    *there = carry;
    carry = op.join(carry, summary);
  });
  if (warp == kGpuJoinWarps - 1) op.finish(at, carry);
}

template <typename Op>
DEV void apply(const Op& op, const GpuTimes& times) {
  const Place at = place_of(times, blockIdx.z, channel_of_thread());
  if (!at.there) return;
  auto carry = times.parts > 1 ? *carry_of<typename Op::Carry>(times, at, blockIdx.y) : op.initial_of(at);
  each_token(op, times, at, blockIdx.y, [&](const typename Op::Input& input, int t) { op.step(carry, input, at, t); });
  if (times.parts == 1) op.finish(at, carry);
}

}  // namespace cortado::timewise

// The three kernels of an operation whose argument struct is `In`.
#define CORTADO_TIMEWISE(name, In, Op)                                              \
  extern "C" __global__ void __launch_bounds__(128) name##_summarize(const In in) { \
    cortado::timewise::summarize(Op{in}, in.times);                                 \
  }                                                                                 \
  extern "C" __global__ void __launch_bounds__(512) name##_join(const In in) {      \
    cortado::timewise::join(Op{in}, in.times);                                      \
  }                                                                                 \
  extern "C" __global__ void __launch_bounds__(128) name##_apply(const In in) {     \
    cortado::timewise::apply(Op{in}, in.times);                                     \
  }
