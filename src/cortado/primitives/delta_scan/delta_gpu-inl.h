// The gated scan's walk with values that must be solved for; see kernel_gpu.h.
//
// Every chunk needs two more products than the gated scan, one after the other: the state read by the keys (backward:
// the gradient of the values before solving), and N times that. Between the two the warps synchronise, because each
// needs all tokens before its own. The stored values replace v in shared memory.
#pragma once

#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/gated_scan/scan_gpu-inl.h"

namespace cortado::delta {

using namespace device;

using gated::kGpuChunk, gated::kGpuPiece, gated::kGpuStages, gated::Stage, gated::Sums, gated::Task;

template <int kKeys, bool kReverse, Task kTask>
class DeltaWalk : protected gated::Scan<kKeys, kReverse, kTask> {
 protected:
  using Scan = gated::Scan<kKeys, kReverse, kTask>;
  using Square = Tile<kGpuChunk * 2>;
  using Values = Tile<kGpuPiece * 2>;
  using Scan::scan_, Scan::at_, Scan::thread_, Scan::lane_, Scan::warp_, Scan::side_, Scan::base_, Scan::token;

  DEV explicit DeltaWalk(const GpuDelta& delta) : Scan(delta.scan), delta_(delta) {
    const u32 squares = base_ + gpu_scan_bytes(kKeys);
    inverse_ = {squares};
    rest_ = {squares + kGpuStages * kGpuSquareBytes};
    second_ = {squares + (kGpuStages + 1) * kGpuSquareBytes};
    betas_ = reinterpret_cast<float*>(shared_memory() + gpu_scan_bytes(kKeys) + (kGpuStages + 2) * kGpuSquareBytes);
    rows_ = gated::head_of<const u16>(delta.inverse, scan_, at_, 0);
    beta_ = gated::head_of<const float>(delta.beta, scan_, at_, 0);
    written_ = gated::head_of<u16>(delta.written, scan_, at_, Scan::Base::eight());
  }

  // Fetches the gated scan's inputs, and the chunk's N and beta.
  DEV void fetch(int c, int stage) {
    if (c < at_.end) {
      constexpr int kPieces = kGpuChunk / 8, kAtOnce = gated::kGpuThreads / kPieces;
      const int piece = thread_ % kPieces;
      UNROLL for (int r = thread_ / kPieces; r < kGpuChunk; r += kAtOnce) {
        const int t = token(c, r);
        const bool there = t < at_.tokens;
        const void* from = there ? rows_ + times(t, delta_.inverse.token) + piece * 8 : scan_.k.data;
        copy16(inverse_of(stage).at(r, piece), from, there ? 16 : 0);
      }
      if (thread_ < kGpuChunk) {
        const int t = token(c, thread_);
        const bool there = t < at_.tokens;
        copy4(shared_address(betas_of(c) + thread_), there ? beta_ + times(t, delta_.beta.token) : scan_.k.data,
              there ? 4 : 0);
      }
    }
    Scan::fetch(c, stage);
  }

  DEV Square inverse_of(int stage) const { return {inverse_.base + stage * kGpuSquareBytes}; }
  DEV float* betas_of(int c) const { return betas_ + (c & 3) * kGpuChunk; }

  // Two numbers of a tile of values, in the columns of product j. half 0: this lane's first row of the warp's 16; 1:
  // the row 8 below.
  DEV u32& pair(const Values& values, int tile, int half, int j) const {
    const u32 at = values.at(tile * 16 + (lane_ >> 2) + 8 * half, side_ * 4 + j) + (lane_ & 3) * 4;
    return *reinterpret_cast<u32*>(shared_memory() + (at - base_));
  }
  // Writes x, times each row's factor, to a tile in 16 bits.
  DEV void put(const Values& values, const float (*x)[4], int tile, float first, float second) const {
    UNROLL for (int j = 0; j < 4; ++j) {
      pair(values, tile, 0, j) = pack(x[j][0] * first, x[j][1] * first);
      pair(values, tile, 1, j) = pack(x[j][2] * second, x[j][3] * second);
    }
  }
  DEV float beta_at(int c, int tile, int half) const { return betas_of(c)[tile * 16 + (lane_ >> 2) + 8 * half]; }

  // sum += N x, or N^T x, for this warp's tokens; x is in `rest_`.
  template <bool kTransposed>
  DEV void apply_inverse(float (*sum)[4], int stage, int tile) const {
    UNROLL_BY(1) for (int s = 0; s <= tile; ++s) {
      u32 n[4];
      if (kTransposed) left_transposed(n, inverse_of(stage), lane_, s * 16, tile);
      if (!kTransposed) left(n, inverse_of(stage), lane_, tile * 16, s);
      UNROLL for (int p = 0; p < 2; ++p) {
        u32 x[4];
        right(x, rest_, lane_, s * 16, side_ * 2 + p);
        multiply(sum[2 * p], n, x[0], x[1]);
        multiply(sum[2 * p + 1], n, x[2], x[3]);
      }
    }
  }

  DEV void write(const float (*x)[4], int tile, int c) const {
    if (written_) Scan::Base::write_to(written_, delta_.written.token, x, tile, c);
  }

  const GpuDelta& delta_;
  Square inverse_;        // of the first stage
  Values rest_, second_;  // the factor of N; in delta_gradient what is subtracted from R
  float* betas_;
  const u16* rows_;
  const float* beta_;
  u16* written_;
};

// Forward: e, o and S.
template <int kKeys, Task kTask>
class DeltaScan : DeltaWalk<kKeys, false, kTask> {
  using Walk = DeltaWalk<kKeys, false, kTask>;
  using typename Walk::Scan;
  using Walk::lane_, Walk::rest_;

 public:
  DEV explicit DeltaScan(const GpuDelta& delta) : Walk(delta) {}

  DEV void run() {
    Scan::go([&](int c, int stage) { Walk::fetch(c, stage); },
             [&](int stage, int c, int tile) {
               const auto in = Scan::stage_of(stage);
               const Sums sums = Scan::sums_of(c);
               answer(in, sums, tile, c);
               __syncthreads();
               float errors[4][4] = {};
               Walk::template apply_inverse<false>(errors, stage, tile);
               Walk::write(errors, tile, c);
               Walk::put(in.v, errors, tile, Walk::beta_at(c, tile, 0), Walk::beta_at(c, tile, 1));
               __syncthreads();
               Scan::read(in, sums, tile, c);
               Scan::update(in, sums, c);
             });
  }

 private:
  // v - (k e^P) S
  DEV void answer(const Stage<kKeys>& in, const Sums& sums, int tile, int c) const {
    float x[4][4] = {};
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      u32 k[4];
      left(k, in.k, lane_, tile * 16, i);
      Scan::multiply_state(x, k, i, c);
    }
    UNROLL for (int half = 0; half < 2; ++half) {
      const int row = tile * 16 + (lane_ >> 2) + 8 * half;
      const bool reached = *sums.any == 0 || sums.cuts[row] == 0;
      const float factor = reached ? power(sums.sums[row]) : 0.0f;
      UNROLL for (int j = 0; j < 4; ++j) {
        const u32 v = Walk::pair(in.v, tile, half, j);
        x[j][2 * half] = unpack_low(v) - x[j][2 * half] * factor;
        x[j][2 * half + 1] = unpack_high(v) - x[j][2 * half + 1] * factor;
      }
    }
    Walk::put(rest_, x, tile, 1, 1);
  }
};

// Backward: dv and R.
template <int kKeys, Task kTask>
class DeltaGradient : DeltaWalk<kKeys, true, kTask> {
  using Walk = DeltaWalk<kKeys, true, kTask>;
  using typename Walk::Scan;
  using Walk::scan_, Walk::rest_, Walk::second_;

 public:
  DEV explicit DeltaGradient(const GpuDelta& delta) : Walk(delta) {}

  DEV void run() {
    Scan::go([&](int c, int stage) { Walk::fetch(c, stage); },
             [&](int stage, int c, int tile) {
               const auto in = Scan::stage_of(stage);
               const Sums sums = Scan::sums_of(c);
               float y[4][4] = {};
               Scan::add_up(y, in, sums, tile, c);
               Walk::put(rest_, y, tile, Walk::beta_at(c, tile, 0), Walk::beta_at(c, tile, 1));
               __syncthreads();
               float dv[4][4] = {};
               Walk::template apply_inverse<true>(dv, stage, tile);
               Walk::write(dv, tile, c);
               if constexpr (kTask == Task::kDot) {
                 u32 with[2][4];
                 Scan::load_with(with, tile, c);
                 Scan::write_dots(dv, with, tile, c);
               }
               const float lost = -1 / scan_.scale;
               Walk::put(second_, dv, tile, lost, lost);
               __syncthreads();
               Scan::keep_of_state(*sums.keeps);
               Scan::add_to_state(in.k, in.v, sums);
               Scan::add_to_state(in.q, second_, sums);
               Scan::Base::write_state(c + 1);
             });
  }
};

}  // namespace cortado::delta
