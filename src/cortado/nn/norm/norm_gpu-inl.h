// RMS norms in training; see norm_gpu.h. One, two, four or eight warps hold a row in registers.
#pragma once

#include "cortado/nn/norm/norm_gpu.h"
#include "cortado/primitives/cuda/token_gpu-inl.h"

namespace cortado::norm {

using device::FourFloats;

template <int kPieces, int kWarps>
class Norm {
  static constexpr int kRows = kGpuNormWarps / kWarps;  // rows per block and step
  struct alignas(8) Words {
    u32 x[2];  // two numbers each
  };

 public:
  DEV explicit Norm(const GpuNorm& in)
      : in_(in),
        lane_(CORTADO_THREAD & 31),
        warp_(CORTADO_THREAD >> 5),
        slot_(warp_ / kWarps),
        first_(((warp_ % kWarps) * 32 + lane_) * 4) {}

  DEV void forward() {
    const int row = blockIdx.x * kRows + slot_;
    const bool there = row < in_.rows;
    FourFloats x[kPieces];
    float squares = 0;
    UNROLL for (int p = 0; p < kPieces; ++p) {
      x[p] = there && has(p) ? stream(row, p) : FourFloats{0, 0, 0, 0};
      UNROLL for (int i = 0; i < 4; ++i) squares += x[p].x[i] * x[p].x[i];
    }
    const float scale = 1 / device::square_root(of_row(squares, 0) / in_.width + in_.eps);
    if (!there) return;
    UNROLL for (int p = 0; p < kPieces; ++p) {
      if (!has(p)) continue;
      const long long at = place(row, p);
      if (in_.branch) *reinterpret_cast<FourFloats*>(in_.sum + at) = x[p];
      const FourFloats weight = weights(p);
      UNROLL for (int i = 0; i < 4; ++i) x[p].x[i] *= scale * weight.x[i];
      write_short(in_.y, at, x[p]);
    }
    if (first_ == 0) in_.scale[row] = scale;
  }

  // With n = x / rms: dx = dsum + (w dy - n mean(w dy n)) / rms, dw = dy n.
  DEV void backward() {
    FourFloats sums[kPieces];
    UNROLL for (int p = 0; p < kPieces; ++p) sums[p] = {0, 0, 0, 0};
    const int steps = (in_.rows + kRows - 1) / kRows;
    int turn = 0;
    UNROLL_BY(1) for (int step = blockIdx.x; step < steps; step += in_.blocks) {
      add_row(step * kRows + slot_, sums, turn);
      turn ^= 1;
    }
    float* const to = in_.grad_weights + device::times(blockIdx.x * kRows + slot_, in_.width);
    UNROLL for (int p = 0; p < kPieces; ++p) {
      if (has(p)) *reinterpret_cast<FourFloats*>(to + number(p)) = sums[p];
    }
  }

 private:
  DEV int number(int p) const { return p * kWarps * 128 + first_; }
  DEV bool has(int p) const { return number(p) < in_.width; }
  DEV long long place(int row, int p) const { return device::times(row, in_.width) + number(p); }
  DEV FourFloats weights(int p) const { return *reinterpret_cast<const FourFloats*>(in_.weight + number(p)); }

  DEV static FourFloats read_short(const void* from, long long at) {
    const auto both = *reinterpret_cast<const Words*>(static_cast<const u16*>(from) + at);
    return {device::unpack_low(both.x[0]), device::unpack_high(both.x[0]), device::unpack_low(both.x[1]),
            device::unpack_high(both.x[1])};
  }
  DEV static void write_short(void* to, long long at, const FourFloats& x) {
    *reinterpret_cast<Words*>(static_cast<u16*>(to) + at) = {device::pack(x.x[0], x.x[1]),
                                                             device::pack(x.x[2], x.x[3])};
  }
  DEV static FourFloats read(const GpuRow& from, long long at) {
    if (from.is_short) return read_short(from.data, at);
    return *reinterpret_cast<const FourFloats*>(static_cast<const float*>(from.data) + at);
  }

  DEV FourFloats stream(int row, int p) const {
    FourFloats x = read(in_.x, place(row, p));
    if (!in_.branch) return x;
    const FourFloats more = read_short(in_.branch, place(row, p));
    UNROLL for (int i = 0; i < 4; ++i) x.x[i] += more.x[i];
    return x;
  }

  // Sums over a row's threads and returns the sum to all of them. Two consecutive calls need different turns.
  DEV float of_row(float x, int turn) const {
    x = device::sum_of_warp(x);
    if constexpr (kWarps > 1) {
      float* const room = reinterpret_cast<float*>(device::shared_memory()) + turn * kGpuNormWarps;
      if (lane_ == 0) room[warp_] = x;
      __syncthreads();
      x = 0;
      UNROLL for (int i = 0; i < kWarps; ++i) x += room[slot_ * kWarps + i];
    }
    return x;
  }

  DEV void add_row(int row, FourFloats* sums, int turn) const {
    const bool there = row < in_.rows;
    const float scale = there ? in_.scale[row] : 0.0f;
    FourFloats n[kPieces], dy[kPieces];
    float dot = 0;
    UNROLL for (int p = 0; p < kPieces; ++p) {
      n[p] = dy[p] = {0, 0, 0, 0};
      if (!there || !has(p)) continue;
      n[p] = read(in_.x, place(row, p));
      dy[p] = read_short(in_.grad_y, place(row, p));
    }
    UNROLL for (int p = 0; p < kPieces; ++p) {
      if (!has(p)) continue;
      const FourFloats weight = weights(p);
      UNROLL for (int i = 0; i < 4; ++i) {
        n[p].x[i] *= scale;
        sums[p].x[i] += dy[p].x[i] * n[p].x[i];
        dy[p].x[i] *= weight.x[i];
        dot += dy[p].x[i] * n[p].x[i];
      }
    }
    const float mean = of_row(dot, turn) / in_.width;
    if (!there) return;
    UNROLL for (int p = 0; p < kPieces; ++p) {
      if (!has(p)) continue;
      const long long at = place(row, p);
      FourFloats dx = {0, 0, 0, 0};
      if (in_.grad_sum) dx = *reinterpret_cast<const FourFloats*>(in_.grad_sum + at);
      UNROLL for (int i = 0; i < 4; ++i) dx.x[i] += scale * (dy[p].x[i] - n[p].x[i] * mean);
      if (in_.grad_x.is_short) write_short(in_.grad_x.data, at, dx);
      if (!in_.grad_x.is_short) *reinterpret_cast<FourFloats*>(static_cast<float*>(in_.grad_x.data) + at) = dx;
      if (in_.grad_branch) write_short(in_.grad_branch, at, dx);
    }
  }

  const GpuNorm& in_;
  const int lane_, warp_, slot_, first_;  // slot_: the row within the block; first_: the thread's first number
};

}  // namespace cortado::norm
