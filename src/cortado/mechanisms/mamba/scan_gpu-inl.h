// Mamba's selective scan on a GPU; kernel_gpu.h declares its arguments.
//
// Four lanes share the states of a channel. A block has 64 channels and passes over all tokens of a row. Inputs arrive
// in stages of several tokens; the next stage is fetched while this one is computed. The gradient goes from the last
// stage to the first. It has the state before each stage, recomputes the stage's other states in registers, and walks
// back through the tokens. The gradients of b and c are summed over the eight channels of a warp by lane exchanges,
// over the block's warps in shared memory, and over the blocks by the caller.
#pragma once

#include "cortado/mechanisms/mamba/kernel_gpu.h"
#include "cortado/primitives/cuda/device.h"

namespace cortado::mamba_kernel {

using namespace device;

template <int kStates>
class Selective {
 protected:
  static constexpr int kOwn = kStates / kGpuLanes, kTokens = gpu_stage_tokens(kStates);

 public:
  DEV explicit Selective(const GpuSelective& in)
      : in_(in),
        thread_(CORTADO_THREAD),
        lane_(thread_ & 31),
        part_(thread_ % kGpuLanes),
        row_(blockIdx.y),
        first_channel_(blockIdx.x * kGpuSelectiveChannels),
        channel_(first_channel_ + thread_ / kGpuLanes),
        here_(channel_ < in.channels),
        first_(in.bounds ? in.bounds[row_] : static_cast<long long>(row_) * in.tokens),
        tokens_(in.bounds ? static_cast<int>(in.bounds[row_ + 1] - first_) : in.tokens),
        stages_(reinterpret_cast<float*>(shared_memory())) {
    UNROLL for (int i = 0; i < kOwn; ++i) {
      a_[i] = has(i) ? in.a[channel_ * in.states + state_of(i)] : 0.0f;
      h_[i] = has(i) ? in.start[place_of(i)] : 0.0f;
    }
  }

  // Writes y, the final state, and the states before the stages.
  DEV void run() {
    fetch(0, 0);
    for (int begin = 0, stage = 0; begin < tokens_; begin += kTokens, stage ^= 1) {
      wait_for_groups<0>();
      __syncthreads();
      fetch(begin + kTokens, stage ^ 1);
      if (in_.kept) keep(begin);
      UNROLL_BY(1) for (int r = 0; r < kTokens && begin + r < tokens_; ++r) {
        const float step = number(step_of(stage), r), x = number(x_of(stage), r) * step;
        float y = 0;
        UNROLL for (int i = 0; i < kOwn; ++i) {
          h_[i] = decay_of(step * a_[i]) * h_[i] + x * state_number(b_of(stage), r, i);
          y += h_[i] * state_number(c_of(stage), r, i);
        }
        y = over_lanes(y);
        if (in_.y && part_ == 0 && here_) in_.y[timed(begin + r)] = y;
      }
    }
    wait_for_groups<0>();
    UNROLL for (int i = 0; i < kOwn; ++i) {
      if (in_.last && has(i)) in_.last[place_of(i)] = h_[i];
    }
  }

 protected:
  DEV int state_of(int i) const { return part_ * kOwn + i; }
  DEV bool has(int i) const { return here_ && state_of(i) < in_.states; }
  DEV long long place_of(int i) const {
    return (static_cast<long long>(row_) * in_.channels + channel_) * in_.states + state_of(i);
  }
  DEV long long timed(int t) const { return (first_ + t) * in_.channels + channel_; }
  DEV long long kept_place(int begin, int i) const {
    const long long stage = gpu_first_stage(row_, first_, in_.tokens, kTokens, in_.bounds != nullptr) + begin / kTokens;
    return (stage * in_.channels + channel_) * in_.states + state_of(i);
  }
  DEV void keep(int begin) const {
    UNROLL for (int i = 0; i < kOwn; ++i) {
      if (has(i)) in_.kept[kept_place(begin, i)] = h_[i];
    }
  }

  DEV float* x_of(int stage) const { return stages_ + stage * gpu_stage_numbers(kStates); }
  DEV float* step_of(int stage) const { return x_of(stage) + kTokens * kGpuSelectiveChannels; }
  DEV float* dy_of(int stage) const { return step_of(stage) + kTokens * kGpuSelectiveChannels; }
  DEV float* b_of(int stage) const { return dy_of(stage) + kTokens * kGpuSelectiveChannels; }
  DEV float* c_of(int stage) const { return b_of(stage) + kTokens * kStates; }

  // number(): token r of a stage for this channel. state_number(): this lane's i-th state of token r.
  DEV float number(const float* of, int r) const { return of[r * kGpuSelectiveChannels + thread_ / kGpuLanes]; }
  DEV float state_number(const float* of, int r, int i) const { return of[r * kStates + state_of(i)]; }

  // Tokens beyond the end are 0, which leaves the state unchanged.
  DEV void fetch(int begin, int stage) const {
    if (begin >= 0 && begin < tokens_) {
      const int channels = in_.channels - first_channel_;
      fetch_rows<kGpuSelectiveChannels>(x_of(stage), in_.x + first_channel_, in_.channels, channels, begin);
      fetch_rows<kGpuSelectiveChannels>(step_of(stage), in_.step + first_channel_, in_.channels, channels, begin);
      if (in_.dy)
        fetch_rows<kGpuSelectiveChannels>(dy_of(stage), in_.dy + first_channel_, in_.channels, channels, begin);
      fetch_rows<kStates>(b_of(stage), in_.b, in_.states, in_.states, begin);
      fetch_rows<kStates>(c_of(stage), in_.c, in_.states, in_.states, begin);
    }
    end_group();
  }
  template <int kWidth>
  DEV void fetch_rows(float* to, const float* from, int stride, int width, int begin) const {
    UNROLL_BY(2) for (int i = thread_; i < kTokens * kWidth; i += kGpuSelectiveThreads) {
      const int t = begin + i / kWidth, column = i % kWidth;
      const bool there = t < tokens_ && column < width;
      copy4(shared_address(to + i), there ? from + (first_ + t) * stride + column : in_.a, there ? 4 : 0);
    }
  }

  DEV static float over_lanes(float x) {
    UNROLL for (int far = 1; far < kGpuLanes; far *= 2) x += __shfl_xor_sync(~0u, x, far);
    return x;
  }

  const GpuSelective& in_;
  const int thread_, lane_, part_, row_, first_channel_, channel_;
  const bool here_;
  const long long first_;
  const int tokens_;
  float* const stages_;
  float a_[kOwn], h_[kOwn];
};

template <int kStates>
class SelectiveGradient : Selective<kStates> {
  using Base = Selective<kStates>;
  using Base::in_, Base::thread_, Base::lane_, Base::part_, Base::tokens_, Base::a_, Base::h_, Base::kOwn,
      Base::kTokens;
  static constexpr int kBoth = 2 * kOwn,
                       kLeft = kBoth / 8;  // kLeft: sums per lane after eight lanes have exchanged kBoth each

 public:
  DEV explicit SelectiveGradient(const GpuSelective& in) : Base(in) {
    sums_ = Base::stages_ + 2 * gpu_stage_numbers(kStates);
  }

  DEV void run() {
    float dh[kOwn], da[kOwn] = {};
    UNROLL for (int i = 0; i < kOwn; ++i) dh[i] = in_.dlast && Base::has(i) ? in_.dlast[Base::place_of(i)] : 0.0f;
    int begin = (tokens_ - 1) / kTokens * kTokens, stage = 0;
    Base::fetch(begin, stage);
    for (; tokens_ > 0 && begin >= 0; begin -= kTokens, stage ^= 1) {
      wait_for_groups<0>();
      __syncthreads();
      Base::fetch(begin - kTokens, stage ^ 1);
      walk_back(begin, stage, dh, da);
      __syncthreads();
      write_sums(begin);
    }
    wait_for_groups<0>();
    UNROLL for (int i = 0; i < kOwn; ++i) {
      if (!Base::has(i)) continue;
      in_.dstart[Base::place_of(i)] = dh[i];
      in_.da[Base::place_of(i)] = da[i];
    }
  }

 private:
  DEV void walk_back(int begin, int stage, float* dh, float* da) {
    float before[kOwn], h[kTokens][kOwn];  // h: after each token
    UNROLL for (int i = 0; i < kOwn; ++i) { before[i] = Base::has(i) ? in_.kept[Base::kept_place(begin, i)] : 0.0f; }
    UNROLL for (int r = 0; r < kTokens; ++r) {
      const float step = Base::number(Base::step_of(stage), r), x = Base::number(Base::x_of(stage), r) * step;
      UNROLL for (int i = 0; i < kOwn; ++i) {
        h[r][i] =
            decay_of(step * a_[i]) * (r ? h[r - 1][i] : before[i]) + x * Base::state_number(Base::b_of(stage), r, i);
      }
    }
    UNROLL for (int r = kTokens - 1; r >= 0; --r) {
      const float step = Base::number(Base::step_of(stage), r), x = Base::number(Base::x_of(stage), r),
                  dy = Base::number(Base::dy_of(stage), r);
      float both[kBoth], written = 0, decayed = 0;  // both: gradients of b and of c
      UNROLL for (int i = 0; i < kOwn; ++i) {
        dh[i] += Base::state_number(Base::c_of(stage), r, i) * dy;
        both[i] = dh[i] * step * x;
        both[kOwn + i] = h[r][i] * dy;
        written += dh[i] * Base::state_number(Base::b_of(stage), r, i);
        dh[i] *= decay_of(step * a_[i]);
        const float kept = dh[i] * (r ? h[r - 1][i] : before[i]);
        decayed += kept * a_[i];
        da[i] += kept * step;
      }
      written = Base::over_lanes(written);
      decayed = Base::over_lanes(decayed);
      if (part_ == 0 && Base::here_ && begin + r < tokens_) {
        in_.dx[Base::timed(begin + r)] = step * written;
        in_.dstep[Base::timed(begin + r)] = x * written + decayed;
      }
      put_sums(both, r);
    }
  }

  // Sums over the warp's channels. In three steps each lane sends half of its sums away, so that kLeft remain per lane.
  DEV void put_sums(float* both, int r) const {
    int first = 0;
    UNROLL for (int step = 0; step < 3; ++step) {
      const int count = kBoth >> (step + 1);
      const bool second = lane_ & (kGpuLanes << step);
      UNROLL for (int i = 0; i < kBoth / 2; ++i) {
        if (i >= count) continue;
        const float other = __shfl_xor_sync(~0u, second ? both[i] : both[i + count], kGpuLanes << step);
        both[i] = (second ? both[i + count] : both[i]) + other;
      }
      if (second) first += count;
    }
    float* to = sums_ + ((thread_ / 32) * kTokens + r) * 2 * kStates;
    UNROLL for (int i = 0; i < kLeft; ++i) {
      const int number = first + i;
      to[(number < kOwn ? 0 : kStates) + part_ * kOwn + number % kOwn] = both[i];
    }
  }

  DEV void write_sums(int begin) const {
    for (int i = thread_; i < kTokens * 2 * kStates; i += kGpuSelectiveThreads) {
      const int t = begin + i / (2 * kStates), number = i % (2 * kStates), state = number % kStates;
      if (t >= tokens_ || state >= in_.states) continue;
      float sum = 0;
      UNROLL for (int warp = 0; warp < kGpuWarps; ++warp) sum += sums_[warp * kTokens * 2 * kStates + i];
      const long long place = (Base::first_ + t) * 2 * in_.states + (number < kStates ? 0 : in_.states) + state;
      in_.parts[blockIdx.x * in_.part + place] = sum;
    }
  }

  float* sums_;
};

}  // namespace cortado::mamba_kernel
