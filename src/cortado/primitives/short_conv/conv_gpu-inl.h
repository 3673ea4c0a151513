// The short convolution on a GPU: a thread has two channels of a part of a row, and keeps the last inputs in registers.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/short_conv/kernel_gpu.h"

namespace cortado::convolution {

using namespace device;

// kShort: 16-bit numbers.
template <int kTaps, bool kShort>
class Conv {
 public:
  DEV explicit Conv(const GpuConv& in) : in_(in) {
    channel_ = 2 * (blockIdx.x * kGpuConvThreads + CORTADO_THREAD);
    part_ = blockIdx.y;
    row_ = blockIdx.z;
    first_ = in.bounds ? in.bounds[row_] : 0;
    length_ = in.bounds ? static_cast<int>(in.bounds[row_ + 1] - first_) : in.tokens;
    begin_ = part_ * kGpuConvTokens;
    const int behind = begin_ + kGpuConvTokens;
    end_ = behind < length_ ? behind : length_;
    if (channel_ >= in.channels) return;
    UNROLL for (int i = 0; i < kTaps; ++i) weight_[i] = two(in.weight, i);
    bias_ = in.bias.data ? two(in.bias, 0) : Two{0, 0};
  }

  DEV void forward() {
    if (channel_ >= in_.channels) return;
    if (part_ == 0) keep_last();
    Two seen[kTaps];  // the last inputs, oldest first
    UNROLL for (int i = 0; i < kTaps - 1; ++i) seen[i + 1] = input(begin_ - kTaps + 1 + i);
    // Eight tokens at a time: a write might alias the next read, so each load would wait for a store.
    int t = begin_;
    for (; t + 8 <= end_; t += 8) {
      Two next[8];
      UNROLL for (int i = 0; i < 8; ++i) next[i] = get(in_.x, t + i);
      UNROLL for (int i = 0; i < 8; ++i) write_next(seen, next[i], t + i);
    }
    for (; t < end_; ++t) write_next(seen, get(in_.x, t), t);
  }

  // dz_t = dy_t act'(z_t); dx_t = sum of weight[i] dz_{t + taps - 1 - i}, plus the last state's gradient. A row's first
  // part also computes the initial state's gradient.
  DEV void backward() {
    if (channel_ >= in_.channels) return;
    const int from = part_ == 0 ? -(kTaps - 1) : begin_;
    Two seen[kTaps], later[kTaps] = {}, sums[kTaps] = {}, sum_of_bias = {0, 0};
    UNROLL for (int i = 0; i < kTaps - 1; ++i) seen[i + 1] = input(from - kTaps + 1 + i);
    const int behind = end_ + kTaps - 1;
    UNROLL_BY(1) for (int first = from; first < behind; first += kAhead) {
      Two x[kAhead], dy[kAhead];
      if (first >= 0 && first + kAhead <= length_ && first + kAhead <= behind) {
        UNROLL for (int i = 0; i < kAhead; ++i) x[i] = get(in_.x, first + i);
        UNROLL for (int i = 0; i < kAhead; ++i) dy[i] = get(in_.grad_y, first + i);
      } else {
        UNROLL for (int i = 0; i < kAhead; ++i) {
          const int t = first + i;
          x[i] = input(t);
          dy[i] = t >= 0 && t < length_ && t < behind ? get(in_.grad_y, t) : Two{0, 0};
        }
      }
      UNROLL for (int i = 0; i < kAhead; ++i) {
        const int t = first + i;
        if (t >= behind) break;
        push(seen, x[i]);
        const Two dz = gradient_of_sum(seen, dy[i]);
        push(later, dz);
        if (t >= begin_ && t < end_) {
          UNROLL for (int c = 0; c < 2; ++c) {
            UNROLL for (int j = 0; j < kTaps; ++j) sums[j].x[c] += dz.x[c] * seen[j].x[c];
            sum_of_bias.x[c] += dz.x[c];
          }
        }
        const int place = t - kTaps + 1;
        if (place >= from && place < end_) write_gradient(place, later);
      }
    }
    float* to = in_.sums + (static_cast<long long>(row_) * in_.parts + part_) * (kTaps + 1) * in_.channels + channel_;
    UNROLL for (int i = 0; i < kTaps; ++i) {
      *reinterpret_cast<Two*>(to + static_cast<long long>(i) * in_.channels) = sums[i];
    }
    *reinterpret_cast<Two*>(to + static_cast<long long>(kTaps) * in_.channels) = sum_of_bias;
  }

 private:
  static constexpr int kAhead = 8;  // tokens that the gradient fetches at once

  DEV static Two two(const float* numbers) { return *reinterpret_cast<const Two*>(numbers); }
  DEV Two two(const GpuTaps& from, int tap) const {
    Two both;
    UNROLL for (int c = 0; c < 2; ++c) {
      const long long at = (channel_ + c) * from.channel + tap * from.tap;
      both.x[c] =
          from.is_short ? unpack_low(static_cast<const u16*>(from.data)[at]) : static_cast<const float*>(from.data)[at];
    }
    return both;
  }
  DEV void write_next(Two* seen, Two x, int t) const {
    push(seen, x);
    const Two z = sum(seen);
    put(in_.y, t, in_.silu ? Two{z.x[0] * sigmoid(z.x[0]), z.x[1] * sigmoid(z.x[1])} : z);
  }
  // dz of a token with these last inputs.
  DEV Two gradient_of_sum(const Two* seen, Two dy) const {
    if (!in_.silu) return dy;
    const Two z = sum(seen);
    UNROLL for (int c = 0; c < 2; ++c) {
      const float s = sigmoid(z.x[c]);
      dy.x[c] *= s * (1 + z.x[c] * (1 - s));
    }
    return dy;
  }
  DEV static void push(Two* all, Two next) {
    UNROLL for (int i = 0; i < kTaps - 1; ++i) all[i] = all[i + 1];
    all[kTaps - 1] = next;
  }
  DEV Two sum(const Two* seen) const {
    Two z = bias_;
    UNROLL for (int i = 0; i < kTaps; ++i) {
      UNROLL for (int c = 0; c < 2; ++c) z.x[c] += weight_[i].x[c] * seen[i].x[c];
    }
    return z;
  }

  DEV long long place(const GpuRows& x, int t) const {
    return (in_.bounds ? 0 : row_) * x.batch + (first_ + t) * x.token + channel_;
  }
  DEV Two get(const GpuRows& x, int t) const {
    if constexpr (kShort) {
      const u32 both = *reinterpret_cast<const u32*>(static_cast<const u16*>(x.data) + place(x, t));
      return {unpack_low(both), unpack_high(both)};
    } else {
      return two(static_cast<const float*>(x.data) + place(x, t));
    }
  }
  DEV void put(const GpuRows& x, int t, Two value) const {
    if constexpr (kShort) {
      *reinterpret_cast<u32*>(static_cast<u16*>(x.data) + place(x, t)) = pack(value.x[0], value.x[1]);
    } else {
      *reinterpret_cast<Two*>(static_cast<float*>(x.data) + place(x, t)) = value;
    }
  }

  DEV long long state(int i) const {
    return (static_cast<long long>(row_) * (kTaps - 1) + i) * in_.channels + channel_;
  }
  // x_t; before the row's start, its initial state.
  DEV Two input(int t) const {
    if (t >= 0) return t < length_ ? get(in_.x, t) : Two{0, 0};
    const int i = t + kTaps - 1;
    return in_.initial && i >= 0 ? two(in_.initial + state(i)) : Two{0, 0};
  }
  DEV void keep_last() const {
    UNROLL for (int i = 0; i < kTaps - 1; ++i) {
      *reinterpret_cast<Two*>(in_.final_state + state(i)) = input(length_ - kTaps + 1 + i);
    }
  }

  // `later`: dz of `place` and of the tokens after it.
  DEV void write_gradient(int place, const Two* later) const {
    Two dx = {0, 0};
    UNROLL for (int i = 0; i < kTaps; ++i) {
      UNROLL for (int c = 0; c < 2; ++c) dx.x[c] += weight_[kTaps - 1 - i].x[c] * later[i].x[c];
    }
    const int last = place - (length_ - kTaps + 1);  // row of the last state
    if (in_.grad_final && last >= 0 && last < kTaps - 1) {
      const Two more = two(in_.grad_final + state(last));
      UNROLL for (int c = 0; c < 2; ++c) dx.x[c] += more.x[c];
    }
    if (place >= 0) return put(in_.grad_x, place, dx);
    *reinterpret_cast<Two*>(in_.grad_initial + state(place + kTaps - 1)) = dx;
  }

  const GpuConv& in_;
  int channel_, part_, row_, length_, begin_, end_;
  long long first_;
  Two weight_[kTaps], bias_;
};

}  // namespace cortado::convolution
