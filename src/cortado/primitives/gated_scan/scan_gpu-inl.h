// A block's walk with one gate per head; see kernel_gpu.h for the formulas and kernel.cu for the method.
#pragma once

#include "cortado/primitives/gated_scan/gates_gpu-inl.h"
#include "cortado/primitives/gated_scan/walk_gpu-inl.h"

namespace cortado::gated {

// kStates: computes states only, no o. kDot: also computes o · `with`, and S or <dS, S> at the segments' ends.
enum class Task { kRead, kDot, kStates };

template <int kKeys, bool kReverse, Task kTask>
class Scan : protected Walk<kKeys, kReverse, kTask != Task::kStates> {
 protected:
  static constexpr int kStages = kGpuStages;
  static constexpr bool kReads = kTask != Task::kStates;
  using Base = Walk<kKeys, kReverse, kReads>;
  using Base::kRows, Base::scan_, Base::at_, Base::thread_, Base::lane_, Base::warp_, Base::side_, Base::states_;
  using Base::state_, Base::token, Base::chunk, Base::at_edge, Base::crossing, Base::eight;

 public:
  DEV explicit Scan(const GpuScan& scan) : Base(scan, shared_memory() + kStages * gpu_stage_bytes(kKeys)) {
    Base::find_output();
    base_ = shared_address(shared_memory());
    gates_ = reinterpret_cast<float*>(states_ + kGpuStateCopies * kKeys * kGpuPiece * 2);
    sums_ = gates_ + 4 * kGpuChunk;
    g_ = head_of<const float>(scan.g, scan, at_, 0);
    if constexpr (kTask == Task::kDot) {
      with_ = head_of<const u16>(scan.with, scan, at_, eight());
      const long long batch = scan.bounds ? 0 : at_.row, slab = at_.piece * 2 + side_;
      dots_ = scan.dots + ((slab * scan.batch + batch) * scan.tokens + at_.first) * scan.heads + at_.head;
    }
  }

  DEV void run() {
    float kept = 1;
    go([&](int c, int stage) { fetch(c, stage); },
       [&](int stage, int c, int tile) {
         const auto in = stage_of(stage);
         const Sums sums = sums_of(c);
         if constexpr (kReads) read(in, sums, tile, c);
         kept *= *sums.keeps;
         update(in, sums, c);
       });
    if (kTask == Task::kStates && thread_ == 0 && at_.piece == 0) scan_.kept[at_.state] = kept;
  }

 protected:
  // Walks chunk by chunk. fetch(c, stage) starts a chunk's copies, which have arrived when work(stage, c, tile) is
  // called. `tile`: this warp's 16 tokens.
  template <typename Fetch, typename Work>
  DEV void go(const Fetch& fetch, const Work& work) {
    Base::begin();
    fetch_gates(at_.begin);
    for (int i = 0; i + 1 < kStages; ++i) fetch(at_.begin + i, i);
    wait_for_groups<kStages - 2>();
    __syncthreads();
    if (thread_ < 32) sum_gates(gates_of(at_.begin), sums_of(at_.begin), lane_);
    int stage = 0;
    for (int c = at_.begin; c < at_.end; ++c) {
      wait_for_groups<kStages - 2>();
      __syncthreads();
      fetch(c + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      const int tile = c & 1 ? 3 - warp_ : warp_;  // the amount of work depends on the tile, so warps alternate
      if (tile == 0 && side_ == 0) sum_gates(gates_of(c + 1), sums_of(c + 1), lane_);
      if constexpr (kTask == Task::kDot) meet(c, sums_of(c));
      work(stage, c, tile);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_for_groups<0>();
    Base::end();
  }

  DEV Stage<kKeys> stage_of(int index) const {
    const u32 base = base_ + index * gpu_stage_bytes(kKeys);
    const int wide = kGpuChunk * kKeys * 2;
    return {{base}, {base + wide}, {base + 2 * wide}};
  }
  DEV float* gates_of(int c) const { return gates_ + (c & 3) * kGpuChunk; }
  DEV Sums sums_of(int c) const { return Sums(sums_ + (c & 1) * kGpuSums); }

  // Fetches a chunk's inputs, and the gates of the chunk after it.
  DEV void fetch(int c, int stage) {
    if (c < at_.end) {
      Base::fetch_inputs(stage_of(stage), c);
      fetch_gates(c + 1);
    }
    end_group();
  }

  DEV void fetch_gates(int c) const {
    if (thread_ >= kGpuChunk) return;
    const int t = token(c, thread_) + scan_.shift;
    const bool there = g_ && c < at_.end && t >= 0 && t < at_.tokens && t - scan_.shift < at_.tokens;
    const void* from = there ? g_ + times(t, scan_.g.token) : scan_.k.data;
    copy4(shared_address(gates_of(c) + thread_), from, there ? 4 : 0);
  }

  // o of 16 tokens of the chunk and 32 values.
  DEV void read(const Stage<kKeys>& in, const Sums& sums, int tile, int c) const {
    u32 with[2][4];
    if constexpr (kTask == Task::kDot) load_with(with, tile, c);  // needed last, but loading it here delays nothing
    float o[4][4] = {};
    add_up(o, in, sums, tile, c);
    if constexpr (kTask == Task::kDot) write_dots(o, with, tile, c);
    Base::write(o, tile, c);
  }

  DEV void add_up(float (*o)[4], const Stage<kKeys>& in, const Sums& sums, int tile, int c) const {
    if (*sums.any) {
      read_rows<true>(o, in, sums, tile, c);
    } else {
      read_rows<false>(o, in, sums, tile, c);
    }
    UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int x = 0; x < 4; ++x) o[j][x] *= scan_.scale; }
  }

  template <bool kCuts>
  DEV void read_rows(float (*o)[4], const Stage<kKeys>& in, const Sums& sums, int tile, int c) const {
    const int row = tile * 16 + (lane_ >> 2);
    u32 q[kKeys / 16][4];
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      left(q[i], in.q, lane_, tile * 16, i);
      Base::multiply_state(o, q[i], i, c);
    }
    const Rows rows = {{sums.sums[row], sums.sums[row + 8]}, {row, row + 8}};
    UNROLL for (int half = 0; half < 2; ++half) {
      const bool reached = !kCuts || sums.cuts[rows.number[half]] == 0;
      const float factor = reached ? power(rows.sums[half]) : 0.0f;
      UNROLL for (int j = 0; j < 4; ++j) {
        o[j][2 * half] *= factor;
        o[j][2 * half + 1] *= factor;
      }
    }
    UNROLL_BY(1) for (int keys = 0; keys < tile; ++keys) add_pairs<false, kCuts>(o, q, in, sums, rows, keys);
    add_pairs<true, kCuts>(o, q, in, sums, rows, tile);
  }

  struct Rows {
    float sums[2];
    int number[2];
  };

  // Adds to o the contribution of 16 earlier tokens (kMask: of these 16 tokens themselves).
  template <bool kMask, bool kCuts>
  DEV void add_pairs(float (*o)[4], const u32 (*q)[4], const Stage<kKeys>& in, const Sums& sums, const Rows& rows,
                     int keys) const {
    float a[2][4] = {};
    Base::multiply_keys(a, q, in.k, keys);
    u32 weights[4];
    UNROLL for (int i = 0; i < 2; ++i) {
      const int s = keys * 16 + i * 8 + (lane_ & 3) * 2;
      const Two before = *reinterpret_cast<const Two*>(sums.sums + s);
      UNROLL for (int half = 0; half < 2; ++half) {
        float w[2];
        UNROLL for (int j = 0; j < 2; ++j) {
          w[j] = a[i][2 * half + j] * power(rows.sums[half] - before.x[j]);
          if (kMask && s + j > rows.number[half]) w[j] = 0;
          if (kCuts && sums.cuts[s + j] != sums.cuts[rows.number[half]]) w[j] = 0;
        }
        weights[2 * i + half] = pack(w[0], w[1]);
      }
    }
    Base::multiply_values(o, weights, in.v, keys);
  }

  DEV void load_with(u32 (*with)[4], int tile, int c) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      const int t = token(c, tile * 16 + (lane_ >> 2) + 8 * half);
      Four numbers = {0, 0, 0, 0};
      if (t < at_.tokens && eight() < scan_.values) {
        numbers = *reinterpret_cast<const Four*>(with_ + times(t, scan_.with.token));
      }
      UNROLL for (int j = 0; j < 4; ++j) with[half][j] = numbers.x[j];
    }
  }

  DEV void write_dots(const float (*o)[4], u32 (*with)[4], int tile, int c) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      exchange(with[half], lane_);
      float dot = 0;
      UNROLL for (int j = 0; j < 4; ++j) {
        dot += o[j][2 * half] * unpack_low(with[half][j]) + o[j][2 * half + 1] * unpack_high(with[half][j]);
      }
      dot += __shfl_xor_sync(~0u, dot, 1);
      dot += __shfl_xor_sync(~0u, dot, 2);
      const int t = token(c, tile * 16 + (lane_ >> 2) + 8 * half);
      if ((lane_ & 3) || t >= at_.tokens) continue;
      dots_[times(t, scan_.heads)] = dot;
    }
  }

  // Before a segment: <this walk's state, the other walk's>.
  DEV void meet(int c, const Sums& sums) const {
    if (!scan_.crossings || !at_edge(c, !kReverse)) return;
    const float* other = scan_.crossing_states + crossing(c) * kKeys * kGpuPiece;
    float sum = 0;
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        const FourFloats x = reinterpret_cast<const FourFloats*>(other)[(i * 4 + j) * kGpuThreads + thread_];
        UNROLL for (int y = 0; y < 4; ++y) sum += state_[i][j][y] * x.x[y];
      }
    }
    for (int d = 1; d < 32; d <<= 1) sum += __shfl_xor_sync(~0u, sum, d);
    const float gate = sums.cuts[0] == 0 || !*sums.any ? power(sums.sums[0]) : 0.0f;
    if (lane_ == 0) scan_.crossings[crossing(c) * (kGpuThreads / 32) + thread_ / 32] = sum * gate * scan_.scale;
  }

  DEV void update(const Stage<kKeys>& in, const Sums& sums, int c) {
    keep_of_state(*sums.keeps);
    add_to_state(in.k, in.v, sums);
    if constexpr (kTask == Task::kDot) Base::keep_state(c);
    if constexpr (kReads) Base::write_state(c + 1);
  }

  DEV void keep_of_state(float part) {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] *= part; }
    }
  }

  DEV void add_to_state(const Tile<kKeys * 2>& keys, const Tile<kGpuPiece * 2>& values, const Sums& sums) {
    UNROLL for (int s = 0; s < kGpuChunk / 16; ++s) {
      const u32* to_end = sums.to_end + s * 8 + (lane_ & 3);
      const u32 low = to_end[0], high = to_end[4];
      u32 v[2][4];
      UNROLL for (int pair = 0; pair < 2; ++pair) {
        right(v[pair], values, lane_, s * 16, side_ * 2 + pair);
        UNROLL for (int x = 0; x < 4; ++x) v[pair][x] = multiply2(v[pair][x], x % 2 ? high : low);
      }
      UNROLL for (int i = 0; i < kRows; ++i) {
        u32 k[4];
        left_transposed(k, keys, lane_, s * 16, warp_ * kRows + i);
        UNROLL for (int pair = 0; pair < 2; ++pair) {
          multiply(state_[i][2 * pair], k, v[pair][0], v[pair][1]);
          multiply(state_[i][2 * pair + 1], k, v[pair][2], v[pair][3]);
        }
      }
    }
  }

  u32 base_;
  float *gates_, *sums_;
  const float* g_;
  const u16* with_;
  float* dots_;
};

}  // namespace cortado::gated
