// N = (I + A diag(beta))^-1 of a chunk: kernel_gpu.h says of what.
//
// Four warps have 16 rows of A each, by products of matrices, and invert the 16 x 16 on the diagonal by substitution in
// float32, a column a lane. With M = A diag(beta), a warp then has 16 columns of N, from the diagonal down:
//   N_ij = -N_ii sum of M_is N_sj over s from j to i - 1
// by products of 16 x 16, transposed, so that what comes out of one is the left operand of the next where it lies. Each
// operand is the sum of two 16-bit numbers: errors are float32's but for a few bits.
#pragma once

#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/gated_scan/gates_gpu-inl.h"
#include "cortado/primitives/gated_scan/walk_gpu-inl.h"

namespace cortado::delta {

using namespace device;

using gated::kGpuChunk;

// Numbers as sums of two of 16 bits each.
struct Halves {
  u32 high, low;
};
DEV Halves halves(float a, float b) {
  const u32 high = pack(a, b);
  return {high, pack(a - unpack_low(high), b - unpack_high(high))};
}

template <int kKeys>
class Inverse {
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
  DEV explicit Inverse(const GpuInverse& in)
      : in_(in),
        head_(blockIdx.x % in.heads),
        row_(blockIdx.x / in.heads),
        chunk_(blockIdx.y),
        thread_(CORTADO_THREAD) {
    first_ = in.bounds ? in.bounds[row_] : 0;
    tokens_ = in.bounds ? static_cast<int>(in.bounds[row_ + 1] - first_) : in.tokens;
    batch_ = in.bounds ? 0 : row_;
    unsigned char* shared = shared_memory();
    base_ = shared_address(shared);
    keys_ = {base_};
    const u32 squares = base_ + kGpuChunk * kKeys * 2;
    inverse_ = {{base_}, {squares}};
    system_ = {{squares + kGpuSquareBytes}, {squares + 2 * kGpuSquareBytes}};
    diagonal_ = reinterpret_cast<float*>(shared + (squares - base_) + 3 * kGpuSquareBytes);
    gates_ = diagonal_ + kGpuChunk * kRows;
    betas_ = gates_ + kGpuChunk;
  }

  DEV void run() {
    if (chunk_ * kGpuChunk >= tokens_) return;
    fetch();
    const gated::Sums sums(betas_ + kGpuChunk);
    if (thread_ < 32) gated::sum_gates(gates_, sums, thread_);
    __syncthreads();
    multiply_keys(sums);
    __syncwarp();
    float x[kRows];
    substitute(x);
    __syncthreads();  // the keys are read
    put_diagonal(x);
    __syncthreads();
    join();
    __syncthreads();
    write();
  }

 private:
  template <typename T>
  DEV T* token(const GpuTimed& x, int t) const {
    return static_cast<T*>(x.data) + batch_ * x.batch + head_ / (in_.heads / x.heads) * x.head +
           (first_ + chunk_ * kGpuChunk + t) * static_cast<long long>(x.token);
  }
  DEV bool there(int t) const { return chunk_ * kGpuChunk + t < tokens_; }

  DEV void fetch() const {
    constexpr int kPieces = kKeys / 8;
    for (int i = thread_; i < kGpuChunk * kPieces; i += kGpuInverseThreads) {
      const int t = i / kPieces, piece = i % kPieces;
      const bool has = there(t) && piece * 8 < in_.keys;
      copy16(keys_.at(t, piece), has ? token<const u16>(in_.k, t) + piece * 8 : in_.k.data, has ? 16 : 0);
    }
    end_group();
    if (thread_ < kGpuChunk) {
      gates_[thread_] = in_.g.data && there(thread_) ? *token<const float>(in_.g, thread_) : 0.0f;
      betas_[thread_] = there(thread_) ? *token<const float>(in_.beta, thread_) : 0.0f;
    }
    wait_for_groups<0>();
    __syncthreads();
  }

  DEV void multiply_keys(const gated::Sums& sums) const {
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
    UNROLL for (int j = 0; j < 2 * kBlocks; ++j) {
      if (j / 2 > warp()) continue;
      UNROLL for (int half = 0; half < 2; ++half) {
        const int t = warp() * kRows + (lane() >> 2) + 8 * half, s = j * 8 + (lane() & 3) * 2;
        const float first = entry(a[j][2 * half], t, s, sums), second = entry(a[j][2 * half + 1], t, s + 1, sums);
        if (j / 2 == warp()) {
          *reinterpret_cast<Two*>(diagonal_ + t * kRows + s % kRows) = {first, second};
        } else {
          const Halves both = halves(first, second);
          *at<u32>(system_.high.at(t, j) + (lane() & 3) * 4) = both.high;
          *at<u32>(system_.low.at(t, j) + (lane() & 3) * 4) = both.low;
        }
      }
    }
  }

  // M_ts, of k_t . k_s.
  DEV float entry(float product, int t, int s, const gated::Sums& sums) const {
    const bool reached = s < t && (*sums.any == 0 || sums.cuts[s] == sums.cuts[t]);
    return reached ? product * power(sums.sums[t] - sums.sums[s]) * betas_[s] : 0.0f;
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

  // Half of the lanes have what 16 bits hold of it, the others what is left.
  DEV void put_diagonal(const float* x) const {
    const int column = warp() * kRows + (lane() & 15);
    const bool high = lane() < 16;
    const Square to = {high ? inverse_.high.base : inverse_.low.base};
    UNROLL for (int t = 0; t < kRows; ++t) {
      const Halves both = halves(x[t], 0);
      *at<u16>(to.at(warp() * kRows + t, column / 8) + column % 8 * 2) = static_cast<u16>(high ? both.high : both.low);
    }
  }

  // The blocks below the diagonal of a warp's columns j, downwards, as N_ij^T = -(sum of N_sj^T M_is^T) N_ii^T.
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

  // sum += x B^T, B being block (row, column) of a matrix.
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

  // A sum of products as the left operand of the next.
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
    for (int i = thread_; i < kGpuChunk * kPieces; i += kGpuInverseThreads) {
      const int t = i / kPieces, piece = i % kPieces;
      if (!there(t)) continue;
      Four numbers = {};
      if (piece / 2 <= t / kRows) numbers = *at<Four>(inverse_.high.at(t, piece));
      *reinterpret_cast<Four*>(token<u16>(in_.inverse, t) + piece * 8) = numbers;
      if (!in_.turned.data) continue;
      Four turned;
      UNROLL for (int j = 0; j < 4; ++j) turned.x[j] = numbers.x[3 - j] >> 16 | numbers.x[3 - j] << 16;
      *reinterpret_cast<Four*>(token<u16>(in_.turned, t) + (kPieces - 1 - piece) * 8) = turned;
    }
  }

  DEV int lane() const { return thread_ & 31; }
  DEV int warp() const { return thread_ >> 5; }
  template <typename T>
  DEV T* at(u32 address) const {
    return reinterpret_cast<T*>(shared_memory() + (address - base_));
  }

  const GpuInverse& in_;
  const int head_, row_, chunk_, thread_;
  long long first_, batch_;
  int tokens_;
  u32 base_;
  Tile<kKeys * 2> keys_;
  Squares inverse_, system_;           // N, high in the place of the keys, low on the diagonal alone; M below it
  float *diagonal_, *gates_, *betas_;  // diagonal_: [64, 16], of M
};

}  // namespace cortado::delta
