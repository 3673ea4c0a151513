// The delta scan's walk with one gate per channel; see kernel_gpu.h. Its inputs already contain the gates, so the two
// directions are almost one walk.
#pragma once

#include "cortado/primitives/delta_scan/delta_gpu-inl.h"

namespace cortado::delta {

template <int kKeys, bool kReverse>
class ChannelDelta : DeltaWalk<kKeys, kReverse, gated::Task::kRead> {
  using Walk = DeltaWalk<kKeys, kReverse, gated::Task::kRead>;
  using typename Walk::Scan;
  using Walk::kRows;
  using Walk::lane_, Walk::rest_, Walk::delta_, Walk::scan_, Walk::at_, Walk::side_, Walk::warp_, Walk::state_;

 public:
  DEV explicit ChannelDelta(const GpuDelta& delta) : Walk(delta) {
    const long long first = gated::gpu_first_chunk(at_.row, at_.first, scan_.tokens, scan_.bounds != nullptr);
    kept_ = delta.kept + (first * scan_.heads + at_.head) * scan_.keys;
    if constexpr (kReverse) gates_ = gated::head_of<const float>(delta.gates, scan_, at_, 0);
  }

  DEV void run() {
    Scan::go([&](int c, int stage) { Walk::fetch(c, stage); },
             [&](int stage, int c, int tile) {
               const auto in = Scan::stage_of(stage);
               float kept[kRows][2];
               load_kept(kept, c);  // needed last, but loading it here delays nothing
               Two added[kReverse ? kRows : 1][4][2];
               if constexpr (kReverse) load_added(added, c);
               const float beta[2] = {Walk::beta_at(c, tile, 0), Walk::beta_at(c, tile, 1)};
               answer(in, tile, c, beta);
               __syncthreads();
               float x[4][4] = {};
               Walk::template apply_inverse<kReverse>(x, stage, tile);
               const bool stores = delta_.writes_stored;
               if (!stores) Walk::write(x, tile, c);
               if constexpr (!kReverse) times_rows(x, beta);
               if (stores) Walk::write(x, tile, c);
               const float factor = kReverse ? -1 / scan_.scale : 1.0f;
               Walk::put(in.v, x, tile, factor, factor);
               __syncthreads();
               keep(kept);
               if constexpr (kReverse) add(added);
               update(in);
               Scan::Base::write_state(c + 1);
             });
  }

 private:
  DEV void load_kept(float (*kept)[2], int c) const {
    const float* of = kept_ + times(Scan::chunk(c), scan_.heads * scan_.keys);
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int half = 0; half < 2; ++half) {
        const int key = Scan::Base::key_of(i) + 8 * half;
        kept[i][half] = key < scan_.keys ? of[key] : 0.0f;
      }
    }
  }

  // The state that a chunk of do leaves, before its first token's gate.
  DEV void load_added(Two (*added)[4][2], int c) const {
    const long long number = (static_cast<long long>(at_.row) * delta_.chunks + c) * scan_.heads + at_.head;
    const float* first = gates_ + times(Scan::chunk(c) * kGpuChunk, delta_.gates.token);
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int half = 0; half < 2; ++half) {
        const int key = Scan::Base::key_of(i) + 8 * half;
        const float* row = delta_.added + (number * scan_.keys + key) * scan_.values;
        const float gate = delta_.added && key < scan_.keys ? exponential(first[key]) : 0.0f;
        UNROLL for (int j = 0; j < 4; ++j) {
          const int value = Scan::Base::value_of(j);
          const bool there = delta_.added && key < scan_.keys && value < scan_.values;
          const Two numbers = there ? *reinterpret_cast<const Two*>(row + value) : Two{0, 0};
          added[i][j][half] = {numbers.x[0] * gate, numbers.x[1] * gate};
        }
      }
    }
  }

  DEV static void times_rows(float (*x)[4], const float* by) {
    UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int i = 0; i < 4; ++i) x[j][i] *= by[i / 2]; }
  }

  // v - a S; backward: beta (y + scale s R)
  DEV void answer(const Stage<kKeys>& in, int tile, int c, const float* beta) const {
    float x[4][4] = {};
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      u32 keys[4];
      left(keys, in.q, lane_, tile * 16, i);
      Scan::Base::multiply_state(x, keys, i, c);
    }
    const float factor = kReverse ? scan_.scale : -1.0f;
    UNROLL for (int half = 0; half < 2; ++half) {
      UNROLL for (int j = 0; j < 4; ++j) {
        const u32 v = Walk::pair(in.v, tile, half, j);
        x[j][2 * half] = unpack_low(v) + x[j][2 * half] * factor;
        x[j][2 * half + 1] = unpack_high(v) + x[j][2 * half + 1] * factor;
      }
    }
    if constexpr (kReverse) times_rows(x, beta);
    Walk::put(rest_, x, tile, 1, 1);
  }

  DEV void keep(const float (*kept)[2]) {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] *= kept[i][x / 2]; }
    }
  }

  DEV void add(const Two (*added)[4][2]) {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] += added[i][j][x / 2].x[x % 2];
      }
    }
  }

  DEV void update(const Stage<kKeys>& in) {
    UNROLL for (int s = 0; s < kGpuChunk / 16; ++s) {
      u32 v[2][4];
      UNROLL for (int p = 0; p < 2; ++p) right(v[p], in.v, lane_, s * 16, side_ * 2 + p);
      UNROLL for (int i = 0; i < kRows; ++i) {
        u32 k[4];
        left_transposed(k, in.k, lane_, s * 16, warp_ * kRows + i);
        UNROLL for (int p = 0; p < 2; ++p) {
          multiply(state_[i][2 * p], k, v[p][0], v[p][1]);
          multiply(state_[i][2 * p + 1], k, v[p][2], v[p][3]);
        }
      }
    }
  }

  const float* kept_;   // of the row's first chunk
  const float* gates_;  // of the row's first token
};

}  // namespace cortado::delta
