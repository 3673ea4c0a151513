// The softmax over time as an operation for timewise_gpu-inl.h.
#pragma once

#include "cortado/primitives/elementwise_scan/timewise_gpu-inl.h"
#include "cortado/primitives/time_softmax/kernel_gpu.h"

namespace cortado::softmax {

using timewise::Place;

struct SoftmaxOp : GpuSoftmax {
  static constexpr int kAhead = 8;
  struct alignas(8) Carry {
    float maximum, sum;
  };
  struct Input {
    float theta;
  };
  DEV static float nothing_seen() { return -device::infinity(); }
  DEV static float seen(float maximum) { return maximum == nothing_seen() ? 0.0f : maximum; }

  DEV Carry nothing() const { return {nothing_seen(), 0}; }
  DEV Carry initial_of(const Place& at) const {
    const long long place = static_cast<long long>(at.row) * times.channels + at.channel;
    return {initial_maximum ? initial_maximum[place] : nothing_seen(),
            initial_normalizer ? initial_normalizer[place] : 0.0f};
  }
  DEV void finish(const Place& at, Carry carry) const {
    const long long place = static_cast<long long>(at.row) * times.channels + at.channel;
    last_maximum[place] = carry.maximum;
    last_normalizer[place] = carry.sum;
  }
  DEV Input load(const Place& at, int t) const { return {*at.at(theta, t)}; }
  DEV void absorb(Carry& carry, Input in) const { carry = join(carry, {in.theta, 1}); }
  DEV Carry join(Carry before, Carry part) const {
    const float maximum = before.maximum > part.maximum ? before.maximum : part.maximum, m = seen(maximum);
    return {maximum,
            device::exponential(before.maximum - m) * before.sum + device::exponential(part.maximum - m) * part.sum};
  }
  DEV void step(Carry& carry, Input in, const Place& at, int t) const {
    const float before = carry.maximum;
    carry.maximum = before > in.theta ? before : in.theta;
    const float m = seen(carry.maximum), key = device::exponential(in.theta - m);
    carry.sum = device::exponential(before - m) * carry.sum + key;
    *at.at(keys, t) = key;
    *at.at(gate, t) = before - m;
    *at.at(maximum, t) = m;
    *at.at(normalizer, t) = carry.sum;
  }
};

}  // namespace cortado::softmax
