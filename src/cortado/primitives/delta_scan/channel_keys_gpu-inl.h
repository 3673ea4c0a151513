// A chunk's keys with one gate per channel: computes the inputs of the walk over the chunks, and A, the keys' products
// over the gates between them.
//
// Works in blocks of 16 tokens, as gated_scan/kernel_channels.cu. Per channel let F_t be the sum of the gates from the
// block's start to t, B_t the sum from after t to its end, and G the sum over the block. Then
//   A_ts = (k_t e^F_t e^(G of the blocks between)) . (k_s e^B_s)   for two blocks
//        = (k_t e^F_t) . (k_s e^-F_s)                              within a block; pair by pair if e^-F would overflow
#pragma once

#include "cortado/primitives/delta_scan/kernel_gpu.h"
#include "cortado/primitives/gated_scan/gates_gpu-inl.h"
#include "cortado/primitives/gated_scan/walk_gpu-inl.h"

namespace cortado::delta {

using namespace device;

using gated::kGpuBlock, gated::kGpuChunk;

// The chunk, row and head that a block of threads works on.
struct InverseChunk {
  const GpuInverse& in_;
  const int head_, row_, chunk_, thread_;
  long long first_, batch_;
  int tokens_;
  u32 base_;

  DEV explicit InverseChunk(const GpuInverse& in)
      : in_(in),
        head_(blockIdx.x % in.heads),
        row_(blockIdx.x / in.heads),
        chunk_(blockIdx.y),
        thread_(CORTADO_THREAD),
        base_(shared_address(shared_memory())) {
    first_ = in.bounds ? in.bounds[row_] : 0;
    tokens_ = in.bounds ? static_cast<int>(in.bounds[row_ + 1] - first_) : in.tokens;
    batch_ = in.bounds ? 0 : row_;
  }

  // Data of token t of the chunk.
  template <typename T>
  DEV T* of(const GpuTimed& x, int t) const {
    const int head = x.heads == in_.heads ? head_ : head_ / (in_.heads / x.heads);
    return static_cast<T*>(x.data) + batch_ * x.batch + head * x.head +
           (first_ + chunk_ * kGpuChunk + t) * static_cast<long long>(x.token);
  }
  DEV bool there(int t) const { return chunk_ * kGpuChunk + t < tokens_; }

  template <int kKeys>
  DEV void fetch_keys(Tile<kKeys * 2> to) const {
    constexpr int kPieces = kKeys / 8, kAtOnce = kGpuInverseThreads / kPieces;
    const int piece = thread_ % kPieces;
    const u16* from = of<const u16>(in_.k, 0) + piece * 8;
    UNROLL for (int i = 0; i < kGpuChunk / kAtOnce; ++i) {
      const int t = i * kAtOnce + thread_ / kPieces;
      const bool has = there(t) && piece * 8 < in_.keys;
      copy16(to.at(t, piece), has ? from + times(t, in_.k.token) : in_.k.data, has ? 16 : 0);
    }
    end_group();
  }

  DEV int lane() const { return thread_ & 31; }
  DEV int warp() const { return thread_ >> 5; }
  template <typename T>
  DEV T* at(u32 address) const {
    return reinterpret_cast<T*>(shared_memory() + (address - base_));
  }
};

// A warp has a block of 16 tokens, a lane two of its channels.
template <int kKeys>
class ChannelKeys {
  static constexpr int kBlocks = kGpuChunk / kGpuBlock, kSets = kKeys / 64;  // 64 channels: two per lane
  using Keys = Tile<kKeys * 2>;

 public:
  // keys: copies in flight. gates: 64 x K floats of shared memory. sums: 6 K + 4 bytes for each block of 16 tokens.
  DEV ChannelKeys(const InverseChunk& chunk, Keys keys, u32 gates, float* sums)
      : chunk_(chunk), in_(chunk.in_), keys_(keys), raised_{gates}, rest_{gates + kGpuChunk * kKeys * 2} {
    gates_ = chunk.at<float>(gates);
    totals_ = sums;
    kept16_ = reinterpret_cast<u32*>(totals_ + kBlocks * kKeys);
    steep_ = reinterpret_cast<int*>(kept16_ + kBlocks * kKeys / 2);
  }

  DEV bool steep(int block) const { return steep_[block]; }

  // Replaces the keys by k e^F and the gates by k e^-F and k e^B, and writes the walk's inputs.
  DEV void apply_gates() const {
    fetch_gates();
    wait_for_groups<0>();
    __syncthreads();
    Two g[kSets][kGpuBlock];
    bool falls = false;
    UNROLL for (int z = 0; z < kSets; ++z) {
      Two total = {0, 0};
      UNROLL for (int t = 0; t < kGpuBlock; ++t) {
        const Two both = *reinterpret_cast<const Two*>(gates_ + (first() + t) * kKeys + channel(z));
        UNROLL for (int x = 0; x < 2; ++x) total.x[x] += g[z][t].x[x] = both.x[x] * kLog2e;
      }
      *reinterpret_cast<Two*>(totals_ + chunk_.warp() * kKeys + channel(z)) = total;
      kept16_[(chunk_.warp() * kKeys + channel(z)) / 2] = pack(power(total.x[0]), power(total.x[1]));
      falls = falls || !(total.x[0] >= gated::kSteep && total.x[1] >= gated::kSteep);
    }
    const bool any = __any_sync(~0u, falls);
    if (chunk_.lane() == 0) steep_[chunk_.warp()] = any;
    __syncthreads();  // the gates have been read
    UNROLL for (int z = 0; z < kSets; ++z) {
      if (any) {
        decay<true>(g[z], z);
      } else {
        decay<false>(g[z], z);
      }
    }
  }

  // a += products of this warp's 16 tokens with all earlier ones; leaves out its own block if that is steep.
  DEV void multiply(float (*a)[4]) const {
    const int own = chunk_.warp(), lane = chunk_.lane();
    u32 q[kKeys / 16][4];
    UNROLL for (int i = 0; i < kKeys / 16; ++i) left(q[i], keys_, lane, own * kGpuBlock, i);
    UNROLL for (int j = kBlocks - 1; j >= 0; --j) {
      if (j > own || (j == own && steep(own))) continue;
      const Keys tile = {j == own ? raised_.base : rest_.base};
      UNROLL for (int i = 0; i < kKeys / 16; ++i) {
        u32 columns[4];
        right_transposed(columns, tile, lane, j * kGpuBlock, i);
        device::multiply(a[2 * j], q[i], columns[0], columns[1]);
        device::multiply(a[2 * j + 1], q[i], columns[2], columns[3]);
      }
      if (j < own && j > 0) move_start(q, j);
    }
  }

  // The warp's own block pair by pair, from the inputs in global memory: a lane has one s and half of the keys.
  DEV void multiply_pairs(float* system, const float* betas) const {
    const int s = chunk_.lane() & 15;
    float sums[kGpuBlock] = {};
    UNROLL_BY(1) for (int i = 0; i < kKeys / 2; ++i) {
      const int key = (chunk_.lane() >> 4) * (kKeys / 2) + i;
      float w = number(s, key);
      UNROLL for (int t = 1; t < kGpuBlock; ++t) {
        if (t <= s) continue;
        w *= there(t, key) ? exponential(chunk_.of<const float>(in_.g, first() + t)[key]) : 1.0f;
        sums[t] += w * number(t, key);
      }
    }
    UNROLL for (int t = 1; t < kGpuBlock; ++t) {
      sums[t] += __shfl_xor_sync(~0u, sums[t], 16);
      if (chunk_.lane() < 16 && t > s) system[t * kGpuBlock + s] = sums[t] * betas[s];
    }
    __syncwarp();
  }

 private:
  DEV int first() const { return chunk_.warp() * kGpuBlock; }
  DEV int channel(int set) const { return set * 64 + chunk_.lane() * 2; }

  DEV void fetch_gates() const {
    constexpr int kPieces = kKeys / 4, kAtOnce = kGpuInverseThreads / kPieces;
    const int piece = chunk_.thread_ % kPieces;
    const float* from = chunk_.of<const float>(in_.g, 0) + piece * 4;
    UNROLL for (int i = 0; i < kGpuChunk / kAtOnce; ++i) {
      const int t = i * kAtOnce + chunk_.thread_ / kPieces;
      const bool has = chunk_.there(t) && piece * 4 < in_.keys;
      copy16(shared_address(gates_ + t * kKeys + piece * 4), has ? from + times(t, in_.g.token) : in_.k.data,
             has ? 16 : 0);
    }
    end_group();
  }

  // Two channels of 16 tokens.
  template <bool kSteepBlock>
  DEV void decay(const Two* g, int set) const {
    Two before = {0, 0}, own = {0, 0}, behind = {0, 0};
    UNROLL for (int b = 0; b < kBlocks; ++b) {
      const Two total = *reinterpret_cast<const Two*>(totals_ + b * kKeys + channel(set));
      UNROLL for (int x = 0; x < 2; ++x) {
        before.x[x] += b < chunk_.warp() ? total.x[x] : 0.0f;
        own.x[x] += b == chunk_.warp() ? total.x[x] : 0.0f;
        behind.x[x] += b > chunk_.warp() ? total.x[x] : 0.0f;
      }
    }
    if (chunk_.warp() == 0) write_kept(own, behind, set);
    Two kept, earlier, later, sum = {0, 0};
    UNROLL for (int x = 0; x < 2; ++x) {
      kept.x[x] = power(own.x[x]);
      earlier.x[x] = power(before.x[x]);
      later.x[x] = power(behind.x[x]);
    }
    const bool has_channel = channel(set) < in_.keys;
    u16* answers = chunk_.of<u16>(in_.answers, first()) + channel(set);
    u16* stored = chunk_.of<u16>(in_.stored, first()) + channel(set);
    u32 raw[kGpuBlock];
    UNROLL for (int t = 0; t < kGpuBlock; ++t) {
      u32* place = numbers_at(keys_, first() + t, set);
      raw[t] = *place;
      const float k[2] = {unpack_low(raw[t]), unpack_high(raw[t])};
      float down[2], up[2];
      UNROLL for (int x = 0; x < 2; ++x) {
        sum.x[x] += g[t].x[x];
        down[x] = k[x] * power(sum.x[x]);
        if (!kSteepBlock) up[x] = k[x] * power(-sum.x[x]);
      }
      const bool has = has_channel && chunk_.there(first() + t);
      *place = pack(down[0], down[1]);
      if (has)
        *reinterpret_cast<u32*>(answers + times(t, in_.answers.token)) =
            pack(down[0] * earlier.x[0], down[1] * earlier.x[1]);
      if constexpr (!kSteepBlock) {
        *numbers_at(raised_, first() + t, set) = pack(up[0], up[1]);
        store(stored, t, set, has, up[0] * kept.x[0], up[1] * kept.x[1], later);
      }
    }
    if constexpr (kSteepBlock) {
      sum = {0, 0};
      UNROLL for (int t = kGpuBlock - 1; t >= 0; --t) {
        store(stored, t, set, has_channel && chunk_.there(first() + t), unpack_low(raw[t]) * power(sum.x[0]),
              unpack_high(raw[t]) * power(sum.x[1]), later);
        UNROLL for (int x = 0; x < 2; ++x) sum.x[x] += g[t].x[x];
      }
    }
  }

  // Stores k e^B, decayed to the chunk's end.
  DEV void store(u16* stored, int t, int set, bool has, float first_channel, float second, const Two& later) const {
    *numbers_at(rest_, first() + t, set) = pack(first_channel, second);
    if (has)
      *reinterpret_cast<u32*>(stored + times(t, in_.stored.token)) =
          pack(first_channel * later.x[0], second * later.x[1]);
  }

  DEV void write_kept(const Two& own, const Two& behind, int set) const {
    if (channel(set) >= in_.keys) return;
    const long long number =
        gated::gpu_first_chunk(chunk_.row_, chunk_.first_, in_.tokens, in_.bounds != nullptr) + chunk_.chunk_;
    *reinterpret_cast<Two*>(in_.kept + (number * in_.heads + chunk_.head_) * in_.keys + channel(set)) = {
        power(own.x[0] + behind.x[0]), power(own.x[1] + behind.x[1])};
  }

  DEV u32* numbers_at(Keys tile, int r, int set) const {
    const int pair = channel(set) / 2;
    return chunk_.at<u32>(tile.at(r, pair >> 2) + (pair & 3) * 4);
  }

  // Multiplies q by the decay over `block`: q was relative to the block's end and becomes relative to its start.
  DEV void move_start(u32 (*q)[4], int block) const {
    const u32* kept = kept16_ + block * kKeys / 2 + (chunk_.lane() & 3);
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      UNROLL for (int x = 0; x < 4; ++x) q[i][x] = multiply2(q[i][x], kept[i * 8 + x / 2 * 4]);
    }
  }

  DEV bool there(int t, int key) const { return chunk_.there(first() + t) && key < in_.keys; }
  DEV float number(int t, int key) const {
    return there(t, key) ? unpack_low(chunk_.of<const u16>(in_.k, first() + t)[key]) : 0.0f;
  }

  const InverseChunk& chunk_;
  const GpuInverse& in_;
  const Keys keys_, raised_, rest_;  // k e^F; k e^-F and k e^B, in the gates' place
  float *gates_, *totals_;           // totals_: [4, K], one row per block
  u32* kept16_;                      // e^G, two 16-bit numbers per word
  int* steep_;
};

}  // namespace cortado::delta
