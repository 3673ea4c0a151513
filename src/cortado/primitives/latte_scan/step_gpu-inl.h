// One token of Latte; see step_gpu.h. A block has 32 values of a state, which it reads and writes once; a warp has
// every fourth latent, a lane one value. Quantities per latent are computed by each block itself.
#pragma once

#include "cortado/primitives/cuda/token_gpu-inl.h"
#include "cortado/primitives/latte_scan/step_gpu.h"

namespace cortado::latent {

using namespace device;

class LatteStep {
  static constexpr int kOwn = kGpuStepLatents / 4;

 public:
  DEV explicit LatteStep(const GpuLatteStep& in)
      : in_(in),
        thread_(CORTADO_THREAD),
        warp_(CORTADO_THREAD >> 5),
        value_(blockIdx.x * kGpuStepValues + (CORTADO_THREAD & 31)),
        head_(blockIdx.y),
        row_(blockIdx.z),
        sums_at_((static_cast<long long>(row_) * in.state_heads + head_) * in.latents) {}

  DEV void run() {
    add_to_sums();
    __syncthreads();
    const bool there = value_ < in_.values;
    const float v = there ? number_of(in_.v, row_, head_, value_, in_.state_heads) : 0.0f;
    float s[kOwn];
    UNROLL for (int j = 0; j < kOwn; ++j) {
      const long long place = times_values(latent(j)) + value_;
      s[j] = there && latent(j) < in_.latents && in_.state ? in_.state[place] : 0.0f;
    }
    UNROLL for (int j = 0; j < kOwn; ++j) {
      const long long place = times_values(latent(j)) + value_;
      s[j] = gates()[latent(j)] * s[j] + weights()[latent(j)] * v;
      if (there && latent(j) < in_.latents) in_.last_state[place] = s[j];
    }
    const int group = in_.heads / in_.state_heads;
    for (int n = 0; n < group; ++n) read(s, head_ * group + n);
  }

 private:
  // Shared memory, one number per latent.
  DEV float* gates() const { return reinterpret_cast<float*>(shared_memory()); }
  DEV float* weights() const { return gates() + kGpuStepLatents; }
  DEV float* shares() const { return gates() + 2 * kGpuStepLatents; }  // 1 / alpha'
  DEV float* reads() const { return gates() + 3 * kGpuStepLatents; }   // p / alpha'
  DEV float* room() const { return gates() + 4 * kGpuStepLatents; }

  DEV int latent(int j) const { return j * 4 + warp_; }
  DEV long long times_values(int latent) const { return (sums_at_ + latent) * in_.values; }
  DEV bool is_latent() const { return thread_ < in_.latents; }

  // m', alpha', and the factors on S and v; one thread per latent. A latent that was never seen has m = -inf and
  // contributes 0.
  DEV void add_to_sums() const {
    float gate = 0, weight = 0, sum = 0;
    if (is_latent()) {
      const float theta = number_of(in_.theta, row_, head_, thread_, in_.state_heads);
      const float before = in_.maximum ? in_.maximum[sums_at_ + thread_] : -infinity();
      const float maximum = theta > before ? theta : before;
      gate = relative(before, maximum);
      weight = relative(theta, maximum);
      sum = (in_.normalizer ? gate * in_.normalizer[sums_at_ + thread_] : 0.0f) + weight;
      if (blockIdx.x == 0) {
        in_.last_maximum[sums_at_ + thread_] = maximum;
        in_.last_normalizer[sums_at_ + thread_] = sum;
      }
    }
    gates()[thread_] = gate;
    weights()[thread_] = weight;
    shares()[thread_] = sum == 0 ? 0.0f : 1 / sum;
  }

  // o of one query head, 32 values.
  DEV void read(const float* s, int head) const {
    const bool mixes = in_.near.data;
    float p = is_latent() ? number_of(in_.query, row_, head, thread_ + mixes, in_.heads) : 0.0f, first = 0;
    if (mixes) first = number_of(in_.query, row_, head, 0, in_.heads);
    if (in_.softmax) soften(p, first, mixes);
    reads()[thread_] = p * shares()[thread_];
    __syncthreads();
    float sum = 0;
    UNROLL for (int j = 0; j < kOwn; ++j) sum += reads()[latent(j)] * s[j];
    sum = total_of_warps(sum, room());
    if (warp_ != 0 || value_ >= in_.values) return;
    if (mixes) sum += first * number_of(in_.near, row_, head, value_, in_.heads);
    const long long place = (static_cast<long long>(row_) * in_.heads + head) * in_.values + value_;
    write_number(in_.o, in_.short_o, place, sum);
  }

  // Turns this thread's logit and, if it `mixes`, the logit `first` into their weights of a softmax over all latents
  // and `first`.
  DEV void soften(float& logit, float& first, bool mixes) const {
    float largest = is_latent() ? logit : -infinity();
    UNROLL for (int d = 1; d < 32; d <<= 1) {
      const float other = __shfl_xor_sync(~0u, largest, d);
      largest = other > largest ? other : largest;
    }
    __syncthreads();
    if ((thread_ & 31) == 0) room()[warp_] = largest;
    __syncthreads();
    UNROLL for (int w = 0; w < 4; ++w) largest = room()[w] > largest ? room()[w] : largest;
    if (mixes && first > largest) largest = first;
    const float p = is_latent() ? exponential(logit - largest) : 0.0f,
                other = mixes ? exponential(first - largest) : 0.0f;
    const float sum = sum_of_warp(p);
    __syncthreads();
    if ((thread_ & 31) == 0) room()[warp_] = sum;
    __syncthreads();
    const float all = room()[0] + room()[1] + room()[2] + room()[3] + other;
    logit = p / all;
    first = other / all;
  }

  const GpuLatteStep& in_;
  const int thread_, warp_, value_, head_, row_;
  const long long sums_at_;  // where this head's sums begin
};

}  // namespace cortado::latent
