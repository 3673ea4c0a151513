// A block's walk with one gate per channel, of the keys or of the values; see kernel_gpu.h for the formulas and
// kernel_channels.cu for the method.
#pragma once

#include "cortado/primitives/gated_scan/gates_gpu-inl.h"
#include "cortado/primitives/gated_scan/walk_gpu-inl.h"

namespace cortado::gated {

// A tile of gates: rows of kWidth floats, whose 16-byte pieces are swizzled as in Tile.
template <int kWidth>
DEV int gate_place(int r, int channel) {
  return r * kWidth + (((channel >> 2) ^ ((r & 7) << 1)) << 2) + (channel & 3);
}

template <int kKeys, bool kReverse, bool kOnKeys, bool kReads>
class ChannelScan : Walk<kKeys, kReverse, kReads> {
  static constexpr int kWidth = kOnKeys ? kKeys : kGpuPiece;  // channels with gates
  static constexpr int kBlocks = kGpuChunk / kGpuBlock;
  static constexpr int kStageBytes = gpu_channel_stage_bytes(kKeys, kOnKeys);
  using Base = Walk<kKeys, kReverse, kReads>;
  using Base::kRows, Base::scan_, Base::at_, Base::thread_, Base::lane_, Base::warp_, Base::side_, Base::states_;
  using Base::state_, Base::token, Base::chunk, Base::at_edge, Base::crossing;

 public:
  DEV explicit ChannelScan(const GpuScan& scan) : Base(scan, shared_memory() + 2 * kStageBytes) {
    Base::find_output();
    shared_ = shared_memory();
    base_ = shared_address(shared_);
    raised_ = states_ + kGpuStateCopies * kKeys * kGpuPiece * 2;
    kept_ = reinterpret_cast<float*>(raised_ + kGpuChunk * kWidth * 2);
    kept16_ = reinterpret_cast<u32*>(kept_ + kBlocks * kWidth);
    steep_ = reinterpret_cast<int*>(kept16_ + kBlocks * kWidth / 2);
    const int t = token(at_.begin, thread_ / (kWidth / 4)) + scan.shift;
    next_gates_ =
        head_of<const float>(scan.g, scan, at_, gate_from()) + times(t, scan.g.token) + thread_ % (kWidth / 4) * 4;
  }

  DEV void run() {
    if (thread_ < kBlocks) steep_[thread_] = -1;
    Base::begin();
    fetch(at_.begin);
    float part_keeps = 1;
    for (int c = at_.begin; c < at_.end; ++c) {
      wait_for_groups<0>();
      __syncthreads();
      fetch(c + 1);
      const auto in = stage_of(c);
      for (int i = thread_; i < 4 * kWidth; i += kGpuThreads) apply_gates(in, i, c);
      __syncthreads();
      if constexpr (kReads) {
        if constexpr (!kOnKeys) meet(c);
        read(in, c & 1 ? 3 - warp_ : warp_, c);
      } else if (thread_ < kWidth) {
        for (int b = 0; b < kBlocks; ++b) part_keeps *= kept_[b * kWidth + thread_];
      }
      update(in, c);
    }
    wait_for_groups<0>();
    if constexpr (!kReads) write_kept(part_keeps);
    Base::end();
  }

 private:
  DEV int gate_from() const { return kOnKeys ? 0 : at_.piece * kGpuPiece; }
  DEV int gate_count() const { return kOnKeys ? scan_.keys : scan_.values - at_.piece * kGpuPiece; }

  DEV Stage<kKeys> stage_of(int c) const {
    const u32 base = base_ + (c & 1) * kStageBytes;
    const int wide = kGpuChunk * kKeys * 2;
    return {{base}, {base + wide}, {base + 2 * wide}};
  }
  DEV float* gate_tile(int c) const {
    return reinterpret_cast<float*>(shared_ + (c & 1) * kStageBytes + gpu_stage_bytes(kKeys));
  }
  // k e^-F or v e^-F, by rows; for a steep block, its warps' scratch (notes).
  DEV Tile<kWidth * 2> raised() const { return {shared_address(raised_)}; }
  DEV float* notes(int block) const {
    return reinterpret_cast<float*>(raised_ + block * kGpuBlock * kWidth * 2) + side_ * 256;
  }

  DEV void fetch(int c) {
    if (c < at_.end) {
      Base::fetch_inputs(stage_of(c), c);
      fetch_gates(c);
    }
    end_group();
  }

  DEV void fetch_gates(int c) {
    constexpr int kPieces = kWidth / 4, kAtOnce = kGpuThreads / kPieces;
    const int first = thread_ / kPieces, piece = thread_ % kPieces;
    const int step = kReverse ? -scan_.g.token : scan_.g.token;
    const u32 tile = shared_address(gate_tile(c));
    UNROLL for (int i = 0; i < kGpuChunk / kAtOnce; ++i) {
      const int r = first + i * kAtOnce, t = token(c, r), of = t + scan_.shift;
      const bool there = of >= 0 && of < at_.tokens && t < at_.tokens && piece * 4 < gate_count();
      copy16(tile + gate_place<kWidth>(r, piece * 4) * 4, there ? next_gates_ + times(i * kAtOnce, step) : scan_.k.data,
             there ? 16 : 0);
    }
    next_gates_ += times(kGpuChunk, step);
  }

  // Applies the gates of 16 tokens from `first` on to two channels. F is the sum of the gates from the block's start to
  // a token, B the sum from after it to the block's end. Gates on the keys: computes q e^F, k e^B and k e^-F. Gates on
  // the values: v e^B, v e^-F, and e^F in place of the gates. Lanes l and l + 16 have half of the tokens each.
  DEV void apply_gates(const Stage<kKeys>& in, int item, int c) {
    const int group = item / 32, half = lane_ >> 4;
    const int pair = group % (kWidth / 32) * 16 + (lane_ & 15), block = group / (kWidth / 32);
    const int first = block * kGpuBlock + half * 8;
    float* gates = gate_tile(c);
    float g[8][2], sum[2] = {0, 0};
    UNROLL for (int j = 0; j < 8; ++j) {
      const Two both = *reinterpret_cast<const Two*>(gates + gate_place<kWidth>(first + j, 2 * pair));
      UNROLL for (int x = 0; x < 2; ++x) sum[x] += g[j][x] = both.x[x] * kLog2e;
    }
    float total[2], before[2], behind[2];
    UNROLL for (int x = 0; x < 2; ++x) {
      const float other = __shfl_xor_sync(~0u, sum[x], 16);
      total[x] = sum[x] + other;
      before[x] = half ? other : 0;
      behind[x] = half ? 0 : other;
    }
    const bool steep = !(total[0] >= kSteep && total[1] >= kSteep);
    if (steep) steep_[block] = c;
    const float kept[2] = {power(total[0]), power(total[1])};
    if (half == 0) {
      *reinterpret_cast<Two*>(kept_ + block * kWidth + 2 * pair) = {kept[0], kept[1]};
      kept16_[block * kWidth / 2 + pair] = pack(kept[0], kept[1]);
    }
    const auto decayed = [&](int r) { return kOnKeys ? numbers_at(in.k, r, pair) : numbers_at(in.v, r, pair); };
    UNROLL for (int j = 0; j < 8; ++j) {
      const int r = first + j;
      float down[2], up[2], rest[2];  // e^F, e^-F, e^B
      UNROLL for (int x = 0; x < 2; ++x) {
        before[x] += g[j][x];
        down[x] = power(before[x]);
        up[x] = power(-before[x]);
        rest[x] = up[x] * kept[x];
      }
      if (!steep) raise_and_scale(decayed(r), r, pair, up, rest);
      if constexpr (kReads && kOnKeys) scale_in_place(numbers_at(in.q, r, pair), down);
      if constexpr (kReads && !kOnKeys)
        *reinterpret_cast<Two*>(gates + gate_place<kWidth>(r, 2 * pair)) = {down[0], down[1]};
    }
    if (!steep) return;
    UNROLL for (int j = 7; j >= 0; --j) {
      const float rest[2] = {power(behind[0]), power(behind[1])};
      scale_in_place(decayed(first + j), rest);
      UNROLL for (int x = 0; x < 2; ++x) behind[x] += g[j][x];
    }
  }

  template <int W>
  DEV u32* numbers_at(Tile<W> tile, int r, int pair) const {
    return reinterpret_cast<u32*>(shared_ + (tile.at(r, pair >> 2) - base_) + (pair & 3) * 4);
  }
  DEV static void scale_in_place(u32* numbers, const float* by) {
    *numbers = pack(unpack_low(*numbers) * by[0], unpack_high(*numbers) * by[1]);
  }
  DEV void raise_and_scale(u32* numbers, int r, int pair, const float* up, const float* rest) const {
    const float low = unpack_low(*numbers), high = unpack_high(*numbers);
    if constexpr (kReads) *numbers_at(raised(), r, pair) = pack(low * up[0], high * up[1]);
    *numbers = pack(low * rest[0], high * rest[1]);
  }

  DEV Two kept_at(int block, int channel) const {
    return *reinterpret_cast<const Two*>(kept_ + block * kWidth + channel);
  }
  DEV int column(int j) const { return side_ * 32 + j * 8 + (lane_ & 3) * 2; }

  // o of 16 tokens of the chunk and 32 values.
  DEV void read(const Stage<kKeys>& in, int tile, int c) const {
    const bool steep = steep_[tile] == c;
    float o[4][4] = {}, a[2][4] = {};
    if (kOnKeys && steep) steep_pairs(a, tile, c);  // first, before q takes registers
    u32 q[kKeys / 16][4];
    UNROLL for (int i = 0; i < kKeys / 16; ++i) left(q[i], in.q, lane_, tile * kGpuBlock, i);
    if constexpr (kOnKeys) {
      if (!steep) Base::multiply_keys(a, q, raised(), tile);
      add_values(o, a, in.v, tile, true);
      UNROLL_BY(1) for (int b = tile - 1; b >= 0; --b) {
        float far[2][4] = {};
        Base::multiply_keys(far, q, in.k, b);
        add_values(o, far, in.v, b, false);
        move_start(q, b);
      }
      read_state(o, q, c);
    } else {
      read_state(o, q, c);
      UNROLL_BY(1) for (int b = 0; b < tile; ++b) {
        keep_columns(o, b);
        float far[2][4] = {};
        Base::multiply_keys(far, q, in.k, b);
        add_values(o, far, in.v, b, false);
      }
      Base::multiply_keys(a, q, in.k, tile);
      if (!steep) add_values(o, a, raised(), tile, true);
      lower(o, tile, c);
      if (steep) add_steep_values(o, a, tile, c);
    }
    UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int x = 0; x < 4; ++x) o[j][x] *= scan_.scale; }
    Base::write(o, tile, c);
  }

  DEV void read_state(float (*o)[4], const u32 (*q)[4], int c) const {
    UNROLL for (int i = 0; i < kKeys / 16; ++i) Base::multiply_state(o, q[i], i, c);
  }

  // mask: only pairs s <= t, both in one block.
  DEV bool counts(int i, int x, bool mask) const {
    return !mask || i * 8 + (lane_ & 3) * 2 + x % 2 <= (lane_ >> 2) + x / 2 * 8;
  }

  DEV void add_values(float (*o)[4], const float (*a)[4], Tile<kGpuPiece * 2> values, int block, bool mask) const {
    u32 weights[4];
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int half = 0; half < 2; ++half) {
        weights[2 * i + half] = pack(counts(i, 2 * half, mask) ? a[i][2 * half] : 0.0f,
                                     counts(i, 2 * half + 1, mask) ? a[i][2 * half + 1] : 0.0f);
      }
    }
    Base::multiply_values(o, weights, values, block);
  }

  // Multiplies q by the decay over `block`: q was relative to the block's end and becomes relative to its start.
  DEV void move_start(u32 (*q)[4], int block) const {
    const u32* kept = kept16_ + block * kWidth / 2 + (lane_ & 3);
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      UNROLL for (int x = 0; x < 4; ++x) q[i][x] = multiply2(q[i][x], kept[i * 8 + x / 2 * 4]);
    }
  }

  DEV void keep_columns(float (*o)[4], int block) const {
    UNROLL for (int j = 0; j < 4; ++j) {
      const Two kept = kept_at(block, column(j));
      UNROLL for (int x = 0; x < 4; ++x) o[j][x] *= kept.x[x % 2];
    }
  }

  // Multiplies o by e^F.
  DEV void lower(float (*o)[4], int tile, int c) const {
    const float* down = gate_tile(c);
    UNROLL for (int half = 0; half < 2; ++half) {
      const int r = tile * kGpuBlock + (lane_ >> 2) + 8 * half;
      UNROLL for (int j = 0; j < 4; ++j) {
        const Two by = *reinterpret_cast<const Two*>(down + gate_place<kWidth>(r, column(j)));
        UNROLL for (int x = 0; x < 2; ++x) o[j][2 * half + x] *= by.x[x];
      }
    }
  }

  // --- Steep blocks, whose gates fall too far for e^-F: pair by pair, from the inputs in global memory. ---

  DEV float number(const GpuTimed& x, int c, int r, int channel, int count) const {
    const int t = token(c, r);
    if (t >= at_.tokens || channel >= count) return 0;
    return unpack_low(head_of<const u16>(x, scan_, at_, channel)[times(t, x.token)]);
  }

  // a_ts = sum of q_t k_s e^(sum of the gates from after s to t) over the keys: a lane has one s and half of the keys.
  DEV void steep_pairs(float (&a)[2][4], int tile, int c) const {
    const int s = lane_ & 15, first = tile * kGpuBlock;
    float sums[16] = {};
    UNROLL_BY(1) for (int i = 0; i < kKeys / 2; ++i) {
      const int channel = (lane_ >> 4) * (kKeys / 2) + i;
      float w = number(scan_.k, c, first + s, channel, scan_.keys);
      UNROLL for (int t = 0; t < 16; ++t) {
        const float gate = gate_tile(c)[gate_place<kWidth>(first + t, channel)];
        if (t > s) w *= exponential(gate);
        if (t >= s) sums[t] += w * number(scan_.q, c, first + t, channel, scan_.keys);
      }
    }
    float* table = notes(tile);
    UNROLL for (int t = 0; t < 16; ++t) {
      sums[t] += __shfl_xor_sync(~0u, sums[t], 16);
      if (lane_ < 16) table[t * 16 + s] = sums[t];
    }
    __syncwarp();
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int x = 0; x < 4; ++x) {
        a[i][x] = table[((lane_ >> 2) + x / 2 * 8) * 16 + i * 8 + (lane_ & 3) * 2 + x % 2];
      }
    }
  }

  // o_t += sum of a_ts e^(sum of the gates from after s to t) v_s over s <= t: a lane has one value, and each s in a
  // register.
  DEV void add_steep_values(float (*o)[4], const float (*a)[4], int tile, int c) const {
    u32* pairs = reinterpret_cast<u32*>(notes(tile));  // a in 16 bits, followed by four rows of results
    float* rows = notes(tile) + 128;
    const int first = tile * kGpuBlock, channel = side_ * 32 + lane_, own_row = lane_ >> 2;
    UNROLL for (int i = 0; i < 2; ++i) {
      UNROLL for (int half = 0; half < 2; ++half) {
        pairs[(own_row + 8 * half) * 8 + i * 4 + (lane_ & 3)] = pack(a[i][2 * half], a[i][2 * half + 1]);
      }
    }
    const float* gates = head_of<const float>(scan_.g, scan_, at_, gate_from() + channel);
    float left[16] = {};  // the decay from each s to the current token
    UNROLL for (int part = 0; part < 4; ++part) {
      __syncwarp();
      UNROLL_BY(1) for (int t = 4 * part; t < 4 * part + 4; ++t) {
        const int at = token(c, first + t) + scan_.shift;
        const bool there = at >= 0 && at < at_.tokens && channel < gate_count();
        const float keeps = there ? exponential(gates[times(at, scan_.g.token)]) : 1.0f;
        const float v = number(scan_.v, c, first + t, at_.piece * kGpuPiece + channel, scan_.values);
        float sum = 0;
        UNROLL for (int s = 0; s < 16; ++s) {
          left[s] = s == t ? v : left[s] * keeps;
          const u32 both = pairs[t * 8 + s / 2];
          if (s <= t) sum += left[s] * (s % 2 ? unpack_high(both) : unpack_low(both));
        }
        rows[t % 4 * 32 + lane_] = sum;
      }
      __syncwarp();
      if (own_row / 4 != part % 2) continue;
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 2; ++x) {
          o[j][part / 2 * 2 + x] += rows[own_row % 4 * 32 + j * 8 + (lane_ & 3) * 2 + x];
        }
      }
    }
  }

  // Before a segment: the products of this walk's state and the other walk's, per column.
  DEV void meet(int c) const {
    if (!scan_.crossings || !at_edge(c, !kReverse)) return;
    const auto* other =
        reinterpret_cast<const FourFloats*>(scan_.crossing_states + crossing(c) * kKeys * kGpuPiece) + thread_;
    float* to = scan_.crossings + (crossing(c) * 4 + warp_) * kGpuPiece;
    UNROLL for (int j = 0; j < 4; ++j) {
      float sums[2] = {0, 0};
      UNROLL for (int i = 0; i < kRows; ++i) {
        const FourFloats x = other[(i * 4 + j) * kGpuThreads];
        UNROLL for (int y = 0; y < 4; ++y) sums[y % 2] += state_[i][j][y] * x.x[y];
      }
      UNROLL for (int x = 0; x < 2; ++x) {
        UNROLL for (int d = 4; d < 32; d <<= 1) sums[x] += __shfl_xor_sync(~0u, sums[x], d);
        const int channel = column(j) + x;
        const float gate = gate_tile(c)[gate_place<kWidth>(0, channel)];
        if (lane_ < 4) to[channel] = sums[x] * gate * scan_.scale;
      }
    }
  }

  DEV void update(const Stage<kKeys>& in, int c) {
    UNROLL_BY(1) for (int b = 0; b < kBlocks; ++b) {
      u32 v[2][4];
      UNROLL for (int pair = 0; pair < 2; ++pair) right(v[pair], in.v, lane_, b * kGpuBlock, side_ * 2 + pair);
      UNROLL for (int i = 0; i < kRows; ++i) {
        if constexpr (kOnKeys) {
          const float* kept = kept_ + b * kWidth + Base::key_of(i);
          UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] *= kept[x / 2 * 8]; }
        } else {
          keep_columns(state_[i], b);
        }
        u32 k[4];
        left_transposed(k, in.k, lane_, b * kGpuBlock, warp_ * kRows + i);
        UNROLL for (int pair = 0; pair < 2; ++pair) {
          multiply(state_[i][2 * pair], k, v[pair][0], v[pair][1]);
          multiply(state_[i][2 * pair + 1], k, v[pair][2], v[pair][3]);
        }
      }
    }
    if constexpr (kReads && !kOnKeys) Base::keep_state(c);
    if constexpr (kReads) Base::write_state(c + 1);
  }

  DEV void write_kept(float part_keeps) const {
    const int width = kOnKeys ? scan_.keys : scan_.values;
    if (thread_ < kWidth && thread_ < gate_count() && (!kOnKeys || at_.piece == 0)) {
      scan_.kept[at_.state * width + gate_from() + thread_] = part_keeps;
    }
  }

  unsigned char *shared_, *raised_;
  u32 base_;
  float* kept_;              // e^(sum of its gates), per block
  u32* kept16_;              // likewise, two 16-bit numbers per word
  int* steep_;               // per block, the last chunk in which it was steep
  const float* next_gates_;  // of this thread's first row of the next chunk
};

// The gates' gradient reads per token: y dy - x dx of this thread's two channels, and which gates are cut.
struct ChannelOperands {
  const GpuChannelGradient& in;
  const u16 *y, *dy, *x, *dx;
  const float* g;

  DEV ChannelOperands(const GpuChannelGradient& given, int head, int channel, long long batch, long long first)
      : in(given) {
    const auto start = [&](const GpuTimed& of) {
      return batch * of.batch + first * of.token + head / (in.heads / of.heads) * of.head + channel;
    };
    y = static_cast<const u16*>(in.y.data) + start(in.y);
    dy = static_cast<const u16*>(in.dy.data) + start(in.dy);
    x = static_cast<const u16*>(in.x.data) + start(in.x);
    dx = static_cast<const u16*>(in.dx.data) + start(in.dx);
    g = static_cast<const float*>(in.g.data) + start(in.g);
  }
  DEV Two difference(int t) const {
    const auto both = [&](const u16* numbers, const GpuTimed& of) {
      return *reinterpret_cast<const u32*>(numbers + times(t, of.token));
    };
    const u32 a = both(y, in.y), da = both(dy, in.dy), b = both(x, in.x), db = both(dx, in.dx);
    return {unpack_low(a) * unpack_low(da) - unpack_low(b) * unpack_low(db),
            unpack_high(a) * unpack_high(da) - unpack_high(b) * unpack_high(db)};
  }
  DEV u32 is_cut(int t, int z) const { return g[times(t, in.g.token) + z] < kCut ? 1u : 0u; }
};

// Adds up the gates' gradient from the two walks' results (kernel_gpu.h). A block has a segment of a head and 64 of its
// channels; a thread has two channels and 32 tokens.
DEV void add_up_channel_gradient(const GpuChannelGradient& in) {
  constexpr int kTokens = 32, kSlices = kGpuSegment / kTokens;
  Two* totals = reinterpret_cast<Two*>(shared_memory());
  const int pair = CORTADO_THREAD % 32, slice = CORTADO_THREAD / 32, row = blockIdx.x / in.heads;
  const int head = blockIdx.x % in.heads, segment = blockIdx.y, piece = blockIdx.z;
  const int channel = piece * kGpuPiece + 2 * pair;
  const long long first = in.bounds ? in.bounds[row] : 0, batch = in.bounds ? 0 : row;
  const int tokens = in.bounds ? static_cast<int>(in.bounds[row + 1] - first) : in.tokens;
  if (segment * kGpuSegment >= tokens) return;
  const ChannelOperands operands(in, head, channel, batch, first);
  const int begin = segment * kGpuSegment + slice * kTokens;
  const bool there = channel < in.keys, full = there && begin + kTokens <= tokens;
  // Read everything before the first write: the compiler cannot rule out that they alias.
  Two own[kTokens], sum = {0, 0};
  u32 cuts[2] = {0, 0};  // a cut gate has no gradient
  if (full) {
    UNROLL for (int i = 0; i < kTokens; ++i) own[i] = operands.difference(begin + i);
    UNROLL for (int i = 0; i < kTokens; ++i) {
      UNROLL for (int z = 0; z < 2; ++z) cuts[z] |= operands.is_cut(begin + i, z) << i;
    }
  } else {
    UNROLL for (int i = 0; i < kTokens; ++i) {
      const bool has = there && begin + i < tokens;
      own[i] = has ? operands.difference(begin + i) : Two{0, 0};
      UNROLL for (int z = 0; z < 2; ++z) cuts[z] |= (has ? operands.is_cut(begin + i, z) : 0u) << i;
    }
  }
  UNROLL for (int i = 0; i < kTokens; ++i) { UNROLL for (int z = 0; z < 2; ++z) sum.x[z] += own[i].x[z]; }
  totals[CORTADO_THREAD] = sum;
  __syncthreads();
  if (!there) return;
  const long long number = gpu_first_segment(row, first, in.tokens, in.bounds != nullptr) + segment;
  const float* crossings = in.crossings + ((number * in.heads + head) * in.pieces + piece) * 4 * kGpuPiece + 2 * pair;
  sum = {0, 0};
  for (int z = 0; z < 2; ++z) {
    for (int i = 0; i < 4; ++i) sum.x[z] += crossings[i * kGpuPiece + z];
  }
  for (int other = in.reverse ? 0 : kSlices - 1; other != slice; other += in.reverse ? 1 : -1) {
    for (int z = 0; z < 2; ++z) sum.x[z] += totals[other * 32 + pair].x[z];
  }
  UNROLL for (int i = 0; i < kTokens; ++i) {
    const int at = in.reverse ? i : kTokens - 1 - i, t = begin + at;
    UNROLL for (int z = 0; z < 2; ++z) sum.x[z] += in.reverse ? own[i].x[z] : own[kTokens - 1 - i].x[z];
    if (t >= tokens) continue;
    Two* to =
        reinterpret_cast<Two*>(in.gradient + ((batch * in.tokens + first + t) * in.heads + head) * in.keys + channel);
    *to = {cuts[0] >> at & 1 ? 0.0f : sum.x[0], cuts[1] >> at & 1 ? 0.0f : sum.x[1]};
  }
}

}  // namespace cortado::gated
