// One token of a scan; see step_gpu.h. A block has 32 columns of a state, or 32 rows if it is read along the values,
// and reads and writes them once.
#pragma once

#include "cortado/primitives/cuda/token_gpu-inl.h"
#include "cortado/primitives/gated_scan/step_gpu.h"

namespace cortado::gated {

using namespace device;

class Step {
 public:
  DEV explicit Step(const GpuStep& in)
      : in_(in),
        lane_(CORTADO_THREAD & 31),
        warp_(CORTADO_THREAD >> 5),
        piece_(blockIdx.x),
        head_(blockIdx.y),
        row_(blockIdx.z) {
    state_ = (static_cast<long long>(row_) * in.state_heads + head_) * in.keys * in.values;
    group_ = in.heads / in.state_heads;
  }

  DEV void run() { in_.read_values ? along_values() : along_keys(); }

 private:
  // Shared memory that every thread reads: of the keys, of a query head, and of the warps.
  DEV float* keys() const { return reinterpret_cast<float*>(shared_memory()); }
  DEV float* decays() const { return keys() + kGpuStepKeys; }
  DEV float* query() const { return keys() + 2 * kGpuStepKeys; }
  DEV float* bonus() const { return keys() + 3 * kGpuStepKeys; }
  DEV float* sums() const { return keys() + 4 * kGpuStepKeys; }

  // A warp has every fourth key, a lane one value.
  DEV void along_keys() {
    constexpr int kOwn = kGpuStepKeys / 4;
    const int c = piece_ * kGpuStepPiece + lane_, thread = CORTADO_THREAD;
    const bool there = c < in_.values;
    keys()[thread] = thread < in_.keys ? key(thread) : 0.0f;
    decays()[thread] = thread < in_.keys ? decay(thread) : 0.0f;
    __syncthreads();
    const float v = there ? number(in_.v, head_, c, in_.state_heads) : 0.0f;
    float s[kOwn], seen = 0;
    UNROLL for (int j = 0; j < kOwn; ++j) {
      const int i = j * 4 + warp_;
      s[j] = there && i < in_.keys && in_.initial ? in_.initial[state_ + times(i, in_.values) + c] : 0.0f;
    }
    UNROLL for (int j = 0; j < kOwn; ++j) seen += decays()[j * 4 + warp_] * s[j] * keys()[j * 4 + warp_];
    float u = v;
    if (in_.beta.data) u = number(in_.beta, head_, 0, in_.state_heads) * (v - total(seen));
    if (in_.bonus.data) read_keys(s, v, c);
    UNROLL for (int j = 0; j < kOwn; ++j) {
      const int i = j * 4 + warp_;
      s[j] = decays()[i] * s[j] + keys()[i] * u;
      if (there && i < in_.keys) in_.last[state_ + times(i, in_.values) + c] = s[j];
    }
    if (!in_.bonus.data) read_keys(s, 0, c);
  }

  // o of this state's query heads: from the updated state, or with a bonus from the state before and k v^T.
  DEV void read_keys(const float* s, float v, int c) const {
    for (int n = 0; n < group_; ++n) {
      const int head = head_ * group_ + n, thread = CORTADO_THREAD;
      __syncthreads();
      query()[thread] = thread < in_.keys ? number(in_.q, head, thread, in_.heads) : 0.0f;
      const bool more = in_.bonus.data && thread < in_.keys;
      bonus()[thread] = more ? number({in_.bonus.data, 0, in_.bonus.head, in_.bonus.heads, in_.bonus.is_short}, head,
                                      thread, in_.heads) *
                                   keys()[thread]
                             : 0.0f;
      __syncthreads();
      float sum = 0;
      UNROLL for (int j = 0; j < kGpuStepKeys / 4; ++j) sum +=
          query()[j * 4 + warp_] * (s[j] + bonus()[j * 4 + warp_] * v);
      sum = total(sum);
      if (warp_ == 0 && c < in_.values) write(head, in_.values, c, sum);
    }
  }

  // A warp has every fourth of 32 keys, its lanes have the values.
  DEV void along_values() {
    constexpr int kRows = kGpuStepPiece / 4, kColumns = kGpuStepValues / 32;
    UNROLL_BY(1) for (int j = 0; j < kRows; ++j) {
      const int i = piece_ * kGpuStepPiece + j * 4 + warp_;
      if (i >= in_.keys) continue;
      float s[kColumns];
      UNROLL for (int m = 0; m < kColumns; ++m) {
        const int c = m * 32 + lane_;
        s[m] = 0;
        if (c >= in_.values) continue;
        const long long place = state_ + static_cast<long long>(i) * in_.values + c;
        s[m] = (in_.initial ? decay(i) * in_.initial[place] : 0.0f) + key(i) * number(in_.v, head_, c, in_.state_heads);
        in_.last[place] = s[m];
      }
      for (int n = 0; n < group_; ++n) {
        const int head = head_ * group_ + n;
        float sum = 0;
        UNROLL for (int m = 0; m < kColumns; ++m) {
          const int c = m * 32 + lane_;
          if (c < in_.values) sum += s[m] * number(in_.q, head, c, in_.heads);
        }
        sum = sum_of_warp(sum);
        if (lane_ == 0) write(head, in_.keys, i, sum);
      }
    }
  }

  DEV float total(float own) const { return total_of_warps(own, sums()); }

  DEV float number(const GpuToken& x, int head, int i, int heads) const { return number_of(x, row_, head, i, heads); }
  DEV float key(int i) const { return number(in_.k, head_, i, in_.state_heads); }
  DEV float decay(int i) const {
    if (!in_.decay.data) return 1;
    const float x = number(in_.decay, head_, in_.decay_of_keys ? i : 0, in_.state_heads);
    return in_.factors ? x : exponential(x);
  }
  DEV void write(int head, int width, int i, float sum) const {
    const long long place = (static_cast<long long>(row_) * in_.heads + head) * width + i;
    write_number(in_.o, in_.short_o, place, sum * in_.factor);
  }

  const GpuStep& in_;
  const int lane_, warp_, piece_, head_, row_;
  long long state_;  // offset of the state
  int group_;        // query heads per state head
};

}  // namespace cortado::gated
