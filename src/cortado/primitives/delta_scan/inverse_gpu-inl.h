// N = (I + A diag(beta))^-1 of a chunk: kernel_gpu.h says of what.
//
// Four warps have 16 rows of A each, by products of matrices. Each column of N is then one thread's, by substitution in
// float32: rows of A diag(beta) come to all threads at once.
#pragma once

#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/gated_scan/gates_gpu-inl.h"
#include "cortado/primitives/gated_scan/walk_gpu-inl.h"

namespace cortado::delta {

using namespace device;

using gated::kGpuChunk;

template <int kKeys>
class Inverse {
  static constexpr int kRows = 16;  // of a block

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
    keys_ = {shared_address(shared)};
    square_ = reinterpret_cast<u16*>(shared);  // in the place of k
    system_ = reinterpret_cast<float*>(shared + kGpuChunk * kKeys * 2);
    columns_ = system_ + kGpuChunk * kGpuChunk;
    gates_ = columns_ + kGpuChunk * kGpuChunk;
    betas_ = gates_ + kGpuChunk;
  }

  DEV void run() {
    if (chunk_ * kGpuChunk >= tokens_) return;
    fetch();
    const gated::Sums sums(betas_ + kGpuChunk);
    if (thread_ < 32) gated::sum_gates(gates_, sums, thread_);
    __syncthreads();
    multiply_keys(sums);
    __syncthreads();
    if (thread_ < kGpuChunk) substitute();
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
    const int lane = thread_ & 31, tile = thread_ >> 5;
    float a[8][4] = {};
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      u32 rows[4];
      left(rows, keys_, lane, tile * 16, i);
      UNROLL for (int j = 0; j < 4; ++j) {
        if (j > tile) continue;
        u32 columns[4];
        right_transposed(columns, keys_, lane, j * 16, i);
        multiply(a[2 * j], rows, columns[0], columns[1]);
        multiply(a[2 * j + 1], rows, columns[2], columns[3]);
      }
    }
    UNROLL for (int j = 0; j < 8; ++j) {
      UNROLL for (int x = 0; x < 4; ++x) {
        const int t = tile * 16 + (lane >> 2) + x / 2 * 8, s = j * 8 + (lane & 3) * 2 + x % 2;
        const bool reached = s < t && (*sums.any == 0 || sums.cuts[s] == sums.cuts[t]);
        system_[t * kGpuChunk + s] = reached ? a[j][x] * power(sums.sums[t] - sums.sums[s]) * betas_[s] : 0.0f;
      }
    }
  }

  // x_t = (t is the column) - sum of system_ts x_s over s < t: blocks of 16 rows, of which those before come from shared
  // memory. (All 64 in registers is code that the multiprocessor must fetch anew for every chunk.)
  DEV void substitute() const {
    UNROLL_BY(1) for (int block = 0; block < kGpuChunk / kRows; ++block) {
      const float* system = system_ + block * kRows * kGpuChunk;
      float x[kRows];
      UNROLL for (int t = 0; t < kRows; ++t) x[t] = block * kRows + t == thread_ ? 1.0f : 0.0f;
      UNROLL_BY(1) for (int before = 0; before < block; ++before) lose_block(x, system, before);
      UNROLL for (int t = 1; t < kRows; ++t) {
        UNROLL for (int s = 0; s < t; s += 4) {
          const FourFloats row = *reinterpret_cast<const FourFloats*>(system + t * kGpuChunk + block * kRows + s);
          UNROLL for (int i = 0; i < 4; ++i) {
            if (s + i < t) x[t] -= row.x[i] * x[s + i];
          }
        }
      }
      UNROLL for (int t = 0; t < kRows; ++t) {
        columns_[(block * kRows + t) * kGpuChunk + thread_] = x[t];
        square_[(block * kRows + t) * kGpuChunk + thread_] = static_cast<u16>(pack(x[t], 0));
      }
    }
  }

  DEV void lose_block(float* x, const float* system, int before) const {
    float known[kRows];
    UNROLL for (int s = 0; s < kRows; ++s) known[s] = columns_[(before * kRows + s) * kGpuChunk + thread_];
    UNROLL for (int t = 0; t < kRows; ++t) {
      UNROLL for (int s = 0; s < kRows; s += 4) {
        const FourFloats row = *reinterpret_cast<const FourFloats*>(system + t * kGpuChunk + before * kRows + s);
        UNROLL for (int i = 0; i < 4; ++i) x[t] -= row.x[i] * known[s + i];
      }
    }
  }

  DEV void write() const {
    constexpr int kPieces = kGpuChunk / 8;
    for (int i = thread_; i < kGpuChunk * kPieces; i += kGpuInverseThreads) {
      const int t = i / kPieces, piece = i % kPieces;
      if (!there(t)) continue;
      const Four numbers = *reinterpret_cast<const Four*>(square_ + t * kGpuChunk + piece * 8);
      *reinterpret_cast<Four*>(token<u16>(in_.inverse, t) + piece * 8) = numbers;
      if (!in_.turned.data) continue;
      Four turned;
      UNROLL for (int j = 0; j < 4; ++j) turned.x[j] = numbers.x[3 - j] >> 16 | numbers.x[3 - j] << 16;
      *reinterpret_cast<Four*>(token<u16>(in_.turned, t) + (kPieces - 1 - piece) * 8) = turned;
    }
  }

  const GpuInverse& in_;
  const int head_, row_, chunk_, thread_;
  long long first_, batch_;
  int tokens_;
  Tile<kKeys * 2> keys_;
  u16* square_;
  float *system_, *columns_, *gates_, *betas_;  // columns_: of N
};

}  // namespace cortado::delta
