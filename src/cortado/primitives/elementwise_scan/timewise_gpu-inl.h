// What goes through time channel by channel, on a GPU: a thread a channel, in parts of time where there are few channels.
// Three kernels: summarize what each part makes of nothing, join the parts, go through all of them again. An operation has
//   Carry                      what passes from token to token
//   Carry nothing(), Carry initial_of(at), void finish(at, carry)   the neutral one, the first, the last
//   Input load(at, t)          of token t, at: a place; kAhead of them are fetched at once
//   void absorb(carry, input)  one token, for the summary
//   Carry join(before, part)   a part behind what came before
//   void step(carry, input, at, t)   one token with all results
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/elementwise_scan/timewise_gpu.h"

namespace cortado::timewise {

using namespace device;

// A channel of a row.
struct Place {
  int row, channel, tokens;
  long long batch, first;
  bool there;
  DEV float* at(const GpuChannels& x, int t) const {
    return x.data + batch * x.batch + (first + t) * x.token + channel;
  }
};

DEV Place place_of(const GpuTimes& times, int row) {
  Place place;
  place.row = row;
  place.channel = blockIdx.x * kGpuTimewiseThreads + CORTADO_THREAD;
  place.there = place.channel < times.channels;
  place.batch = times.bounds ? 0 : row;
  place.first = times.bounds ? times.bounds[row] : 0;
  place.tokens = times.bounds ? static_cast<int>(times.bounds[row + 1] - place.first) : times.tokens;
  return place;
}

template <typename Op, typename Each>
DEV void each_token(const Op& op, const GpuTimes& times, const Place& at, int part, const Each& work) {
  const int wanted = (at.tokens + times.part_tokens - 1) / times.part_tokens;
  const int parts = wanted < times.parts ? (wanted > 1 ? wanted : 1) : times.parts;
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
  const Place at = place_of(times, blockIdx.z);
  if (!at.there) return;
  auto carry = op.nothing();
  each_token(op, times, at, blockIdx.y, [&](const typename Op::Input& input, int) { op.absorb(carry, input); });
  *carry_of<typename Op::Carry>(times, at, blockIdx.y) = carry;
}

template <typename Op>
DEV void join(const Op& op, const GpuTimes& times) {
  const Place at = place_of(times, blockIdx.y);
  if (!at.there) return;
  auto carry = op.initial_of(at);
  for (int part = 0; part < times.parts; ++part) {
    auto* there = carry_of<typename Op::Carry>(times, at, part);
    const auto summary = *there;
    *there = carry;
    carry = op.join(carry, summary);
  }
  op.finish(at, carry);
}

template <typename Op>
DEV void apply(const Op& op, const GpuTimes& times) {
  const Place at = place_of(times, blockIdx.z);
  if (!at.there) return;
  auto carry = times.parts > 1 ? *carry_of<typename Op::Carry>(times, at, blockIdx.y) : op.initial_of(at);
  each_token(op, times, at, blockIdx.y, [&](const typename Op::Input& input, int t) { op.step(carry, input, at, t); });
  if (times.parts == 1) op.finish(at, carry);
}

}  // namespace cortado::timewise

// The three kernels of an operation whose argument is `In`.
#define CORTADO_TIMEWISE(name, In, Op)                                              \
  extern "C" __global__ void __launch_bounds__(128) name##_summarize(const In in) { \
    cortado::timewise::summarize(Op{in}, in.times);                                 \
  }                                                                                 \
  extern "C" __global__ void __launch_bounds__(128) name##_join(const In in) {      \
    cortado::timewise::join(Op{in}, in.times);                                      \
  }                                                                                 \
  extern "C" __global__ void __launch_bounds__(128) name##_apply(const In in) {     \
    cortado::timewise::apply(Op{in}, in.times);                                     \
  }
