// N = (I + A diag(beta))^-1 of a chunk; see kernel_gpu.h.
//
// Four warps compute 16 rows of A each by matrix products, and invert the 16 x 16 block on the diagonal by substitution
// in float32, one column per lane. With M = A diag(beta), each warp then computes 16 columns of N, from the diagonal
// down,
//   N_ij = -N_ii sum of M_is N_sj over s from j to i - 1
// by products of 16 x 16, transposed, so that each result is already laid out as the left operand of the next product.
// Operands are sums of two 16-bit numbers, which leaves errors a few bits larger than float32's.
#pragma once

#include "cortado/primitives/delta_scan/channel_keys_gpu-inl.h"
#include "cortado/primitives/gated_scan/gates_gpu-inl.h"

namespace cortado::delta {

using namespace device;

using gated::kGpuChunk;

// Numbers as sums of two 16-bit numbers.
struct Halves {
  u32 high, low;
};
DEV Halves halves(float a, float b) {
  const u32 high = pack(a, b);
  return {high, pack(a - unpack_low(high), b - unpack_high(high))};
}

// kChannels: one gate per channel of the keys; else one per head, or none.
template <int kKeys, bool kChannels>
class Inverse : InverseChunk {
  static constexpr int kRows = 16, kBlocks = kGpuChunk / kRows;
  using Square = Tile<kGpuChunk * 2>;
  struct Squares {
    Square high, low;
  };
  // 16 x 16 numbers as a left operand.
  struct Left {
    u32 high[4], low[4];
  };

 public:
  DEV explicit Inverse(const GpuInverse& in) : InverseChunk(in) {
    keys_ = {base_};
    const u32 rest = base_ + kGpuChunk * kKeys * 2, squares = rest + gpu_inverse_gate_bytes(kKeys, kChannels);
    inverse_ = {{base_}, {rest}};
    system_ = {{squares}, {squares + kGpuSquareBytes}};
    diagonal_ = at<float>(squares + 2 * kGpuSquareBytes);
    betas_ = diagonal_ + kGpuChunk * kRows;
    gates_ = kChannels ? betas_ + kGpuChunk : at<float>(rest);
  }

  DEV void run() {
    if (chunk_ * kGpuChunk >= tokens_) return;
    fetch_keys<kKeys>(keys_);
    if constexpr (kChannels) {
      multiply_channels();
    } else {
      multiply_keys();
    }
    __syncwarp();
    float x[kRows];
    substitute(x);
    __syncthreads();  // the keys have been read
    put_diagonal(x);
    __syncthreads();
    join();
    __syncthreads();
    write();
  }

 private:
  DEV void fetch_betas() const {
    if (thread_ < kGpuChunk) betas_[thread_] = there(thread_) ? *of<const float>(in_.beta, thread_) : 0.0f;
  }

  // A with one gate per head: k k^T times the decays in between.
  DEV void multiply_keys() const {
    fetch_betas();
    if (thread_ < kGpuChunk) gates_[thread_] = in_.g.data && there(thread_) ? *of<const float>(in_.g, thread_) : 0.0f;
    wait_for_groups<0>();
    __syncthreads();
    const gated::Sums sums(gates_ + kGpuChunk);
    if (thread_ < 32) gated::sum_gates(gates_, sums, thread_);
    float a[2 * kBlocks][4] = {};
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      u32 rows[4];
      left(rows, keys_, lane(), warp() * kRows, i);
      UNROLL for (int j = 0; j < kBlocks; ++j) {
        if (j > warp()) continue;
        u32 columns[4];
        right_transposed(columns, keys_, lane(), j * kRows, i);
        multiply(a[2 * j], rows, columns[0], columns[1]);
        multiply(a[2 * j + 1], rows, columns[2], columns[3]);
      }
    }
    __syncthreads();
    if (*sums.any) {
      put_system(
          a, [&](int t, int s) { return sums.cuts[s] == sums.cuts[t] ? power(sums.sums[t] - sums.sums[s]) : 0.0f; });
    } else {
      put_system(a, [&](int t, int s) { return power(sums.sums[t] - sums.sums[s]); });
    }
  }

  // A with one gate per channel: the factors contain the gates.
  DEV void multiply_channels() const {
    fetch_betas();
    const ChannelKeys<kKeys> keys(*this, keys_, inverse_.low.base, gates_);
    keys.apply_gates();
    __syncthreads();
    float a[2 * kBlocks][4] = {};
    keys.multiply(a);
    put_system(a, [](int, int) { return 1.0f; });
    __syncwarp();
    if (keys.steep(warp())) keys.multiply_pairs(diagonal_ + warp() * kRows * kRows, betas_ + warp() * kRows);
  }

  // M from products and the decays in between; entries above the diagonal of its 16 x 16 blocks are meaningless.
  template <typename Gates>
  DEV void put_system(const float (*a)[4], const Gates& gates) const {
    const int row = warp() * kRows + (lane() >> 2);
    UNROLL for (int j = 0; j < 2 * kBlocks; ++j) {
      if (j / 2 > warp()) continue;
      const int s = j * 8 + (lane() & 3) * 2;
      const Two beta = *reinterpret_cast<const Two*>(betas_ + s);
      float m[4];
      UNROLL for (int x = 0; x < 4; ++x) m[x] = a[j][x] * gates(row + x / 2 * 8, s + x % 2) * beta.x[x % 2];
      UNROLL for (int half = 0; half < 2; ++half) {
        const int t = row + 8 * half;
        if (j / 2 == warp()) {
          *reinterpret_cast<Two*>(diagonal_ + t * kRows + s % kRows) = {m[2 * half], m[2 * half + 1]};
        } else {
          const Halves both = halves(m[2 * half], m[2 * half + 1]);
          *at<u32>(system_.high.at(t, j) + (lane() & 3) * 4) = both.high;
          *at<u32>(system_.low.at(t, j) + (lane() & 3) * 4) = both.low;
        }
      }
    }
  }

  // Column lane % 16 of this warp's N_ii: x_t = (t is the column) - sum of M_ts x_s over s < t.
  DEV void substitute(float* x) const {
    const float* system = diagonal_ + warp() * kRows * kRows;
    UNROLL for (int t = 0; t < kRows; ++t) x[t] = t == (lane() & 15) ? 1.0f : 0.0f;
    UNROLL for (int t = 1; t < kRows; ++t) {
      UNROLL for (int s = 0; s < t; s += 4) {
        const FourFloats row = *reinterpret_cast<const FourFloats*>(system + t * kRows + s);
        UNROLL for (int i = 0; i < 4; ++i) {
          if (s + i < t) x[t] -= row.x[i] * x[s + i];
        }
      }
    }
  }

  // Writes N_ii in float32 in M's place; then each lane splits two numbers into 16-bit halves: rounded value and
  // remainder.
  DEV void put_diagonal(const float* x) const {
    float* numbers = diagonal_ + warp() * kRows * kRows;
    UNROLL for (int t = 0; t < kRows / 2; ++t) {
      const int row = lane() < 16 ? t : t + kRows / 2;
      numbers[row * kRows + (lane() & 15)] = lane() < 16 ? x[t] : x[t + kRows / 2];
    }
    __syncwarp();
    UNROLL for (int i = 0; i < 4; ++i) {
      const int row = i * 4 + (lane() >> 3), column = (lane() & 7) * 2;
      const Two two = *reinterpret_cast<const Two*>(numbers + row * kRows + column);
      const Halves both = halves(two.x[0], two.x[1]);
      const u32 place = inverse_.high.at(warp() * kRows + row, warp() * 2 + column / 8) + column % 8 * 2;
      *at<u32>(place) = both.high;
      *at<u32>(place - inverse_.high.base + inverse_.low.base) = both.low;
    }
  }

  // The blocks below the diagonal in a warp's columns j, downwards, as N_ij^T = -(sum of N_sj^T M_is^T) N_ii^T.
  DEV void join() const {
    Left known[kBlocks - 1];
    const int j = warp();
    left_transposed(known[0].high, inverse_.high, lane(), j * kRows, j);
    left_transposed(known[0].low, inverse_.low, lane(), j * kRows, j);
    UNROLL for (int below = 1; below < kBlocks; ++below) {
      const int i = j + below;
      if (i >= kBlocks) continue;
      float sum[2][4] = {}, x[2][4] = {};
      UNROLL for (int s = 0; s < below; ++s) multiply_block(sum, known[s], system_, i, j + s);
      multiply_block(x, to_left(sum, 1), inverse_, i, i);
      if (below < kBlocks - 1) known[below] = to_left(x, -1);
      UNROLL for (int half = 0; half < 2; ++half) {
        UNROLL for (int n = 0; n < 4; ++n) {
          const int row = i * kRows + half * 8 + (lane() & 3) * 2 + n % 2,
                    column = j * kRows + (lane() >> 2) + n / 2 * 8;
          *at<u16>(inverse_.high.at(row, column / 8) + column % 8 * 2) = static_cast<u16>(pack(-x[half][n], 0));
        }
      }
    }
  }

  // sum += x B^T, where B is block (row, column) of a matrix.
  DEV void multiply_block(float (*sum)[4], const Left& x, const Squares& matrix, int row, int column) const {
    u32 high[4], low[4];
    right_transposed(high, matrix.high, lane(), row * kRows, column);
    right_transposed(low, matrix.low, lane(), row * kRows, column);
    UNROLL for (int half = 0; half < 2; ++half) {
      multiply(sum[half], x.low, high[2 * half], high[2 * half + 1]);
      multiply(sum[half], x.high, low[2 * half], low[2 * half + 1]);
      multiply(sum[half], x.high, high[2 * half], high[2 * half + 1]);
    }
  }

  // Converts a sum of products to the next product's left operand.
  static DEV Left to_left(const float (*x)[4], float sign) {
    Left out;
    UNROLL for (int i = 0; i < 4; ++i) {
      const float* two = x[i / 2] + i % 2 * 2;
      const Halves both = halves(sign * two[0], sign * two[1]);
      out.high[i] = both.high;
      out.low[i] = both.low;
    }
    return out;
  }

  DEV void write() const {
    constexpr int kPieces = kGpuChunk / 8;
    const int piece = thread_ % kPieces;
    u16* to = of<u16>(in_.inverse, 0) + piece * 8;
    u16* turned_to = in_.turned.data ? of<u16>(in_.turned, 0) + (kPieces - 1 - piece) * 8 : nullptr;
    UNROLL for (int i = 0; i < kGpuChunk * kPieces / kGpuInverseThreads; ++i) {
      const int t = i * (kGpuInverseThreads / kPieces) + thread_ / kPieces;
      if (!there(t)) continue;
      Four numbers = {};
      if (piece / 2 <= t / kRows) numbers = *at<Four>(inverse_.high.at(t, piece));
      *reinterpret_cast<Four*>(to + times(t, in_.inverse.token)) = numbers;
      if (!turned_to) continue;
      Four turned;
      UNROLL for (int j = 0; j < 4; ++j) turned.x[j] = numbers.x[3 - j] >> 16 | numbers.x[3 - j] << 16;
      *reinterpret_cast<Four*>(turned_to + times(t, in_.turned.token)) = turned;
    }
  }

  Tile<kKeys * 2> keys_;
  // N has its high halves in the keys' place and low halves on the diagonal only; M (system_) is below the diagonal.
  Squares inverse_, system_;
  float *diagonal_, *betas_, *gates_;  // diagonal_: [64, 16], of M; gates_: with their sums, or ChannelKeys' own
};

}  // namespace cortado::delta
