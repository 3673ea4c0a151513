// A block's walk through Latte's chunks; see kernel_gpu.h for the formulas and kernel.cu for the method.
#pragma once

#include "cortado/primitives/gated_scan/walk_gpu-inl.h"
#include "cortado/primitives/latte_scan/join_gpu-inl.h"
#include "cortado/primitives/latte_scan/kernel_gpu.h"

namespace cortado::latent {

using gated::kGpuChunk;
using gated::kGpuPiece;
using gated::kGpuThreads;

// kReadStates and kLogitsStates compute states only, no o.
enum class Task { kRead, kReadStates, kWeights, kValues, kLogits, kLogitsStates };

constexpr bool runs_back(Task task) {
  return task == Task::kValues || task == Task::kLogits || task == Task::kLogitsStates;
}
constexpr bool is_across(Task task) {
  return task == Task::kWeights || task == Task::kLogits || task == Task::kLogitsStates;
}
constexpr bool has_output(Task task) { return task != Task::kReadStates && task != Task::kLogitsStates; }

template <int kKeys, Task kTask, bool kApart>
class Latte : gated::Walk<kKeys, runs_back(kTask), has_output(kTask)> {
  static constexpr bool kReverse = runs_back(kTask), kAcross = is_across(kTask), kOut = has_output(kTask);
  static constexpr bool kLogit = kTask == Task::kLogits || kTask == Task::kLogitsStates;
  static constexpr bool kStraightRead = kTask == Task::kRead;
  static constexpr bool kHasP = kTask == Task::kRead || kReverse;
  static constexpr int kWidth = kAcross ? kGpuPiece : kKeys;  // latents of this block
  static constexpr int kPairs = kWidth / 64, kRowsEach = kGpuChunk / kGpuWarps;
  static constexpr int kColumns = 2 * kPairs;  // per lane while it prepares chunks
  static constexpr int kStages = gpu_latte_stages(kApart), kStageBytes = gpu_latte_stage_bytes(kKeys, kLogit);
  using Base = gated::Walk<kKeys, kReverse, kOut>;
  using Base::kRows, Base::scan_, Base::at_, Base::thread_, Base::lane_, Base::warp_, Base::side_, Base::states_;
  using Base::state_, Base::token, Base::chunk;
  using Latents = Tile<kWidth * 2>;

 public:
  DEV explicit Latte(const GpuLatte& in)
      : Base(in.scan, shared_memory() + kStages * kStageBytes), in_(in), base_(shared_address(shared_memory())) {
    maxima_ = reinterpret_cast<float*>(states_ + kKeys * kGpuPiece * 2);
    firsts_ = maxima_ + kGpuWarps * kWidth;
    sums_ = firsts_ + kGpuWarps * kWidth;
    factors_ = sums_ + kGpuWarps * kWidth;
    steep_ = reinterpret_cast<volatile u32*>(factors_ + kWidth);
    outer_ = factors_ + kWidth + 4;
    if constexpr (kTask == Task::kWeights) Base::find_output();
    order_ = kReverse ? kGpuWarps - 1 - thread_ / 32 : thread_ / 32;
  }

  DEV void run() {
    const bool any = at_.begin < at_.end;  // some parts are empty
    if constexpr (!kApart) {
      Base::load_state();
      load_carried();
      take_turns();
      Base::end();
      write_carried();
    } else if (CORTADO_THREAD < kGpuThreads) {
      Base::load_state();
      if (any) multiply_all();
      Base::end();
    } else {
      load_carried();
      if (any) prepare_all();
      write_carried();
    }
  }

 private:
  // --- The walk through the chunks. ---

  // All warps prepare a chunk, and then multiply it.
  DEV void take_turns() {
    for (int i = 0; i + 1 < kStages; ++i) fetch(at_.begin + i, i);
    int stage = 0;
    for (int c = at_.begin; c < at_.end; ++c) {
      wait_for_groups<kStages - 2>();
      __syncthreads();
      fetch(c + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      float sums[kRowsEach][kColumns];
      Columns columns;
      begin_chunk(columns, stage, c);
      __syncthreads();
      sum_chunk(sums, columns, stage, c);
      __syncthreads();
      end_chunk(sums, columns, stage, c);
      write_state(c);
      __syncthreads();
      if constexpr (kOut) read(stage, c & 1 ? 3 - warp_ : warp_, c);
      update(stage);
      stage = after(stage);
    }
    wait_for_groups<0>();
  }

  // The two halves of the block synchronise three times per chunk: these warps are at chunk c, the others one chunk
  // ahead of them. (Barriers count warps, wherever in the code each of them is.)
  DEV void multiply_all() {
    for (int i = 0; i + 2 < kStages; ++i) fetch(at_.begin + i, i);
    int stage = kStages - 1;
    for (int c = at_.begin - 1; c < at_.end; ++c) {
      const bool there = c >= at_.begin;
      wait_for_groups<kStages - 3>();
      __syncthreads();
      fetch(c + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      if (there) write_state(c);
      __syncthreads();
      if constexpr (kOut) {
        if (there) read(stage, c & 1 ? 3 - warp_ : warp_, c);
      }
      __syncthreads();
      if (there) update(stage);
      if (c + 1 < at_.end) meet_preparing(c + 1);
      stage = after(stage);
    }
    wait_for_groups<0>();
  }

  DEV void prepare_all() {
    // Fetches the tensors that only these warps need.
    const auto fetch_own = [&](int c, int stage) {
      if constexpr (!kLogit) return;
      if (c < at_.end) fetch_latents(stage, c);
      end_group();
    };
    for (int i = 0; i + 2 < kStages; ++i) fetch_own(at_.begin + i, i);
    int stage = 0;
    for (int c = at_.begin; c < at_.end; ++c) {
      float sums[kRowsEach][kColumns];
      Columns columns;
      if constexpr (kLogit) wait_for_groups<kStages - 3>();
      __syncthreads();
      fetch_own(c + kStages - 2, stage < 2 ? stage + kStages - 2 : stage - 2);
      begin_chunk(columns, stage, c);
      __syncthreads();
      sum_chunk(sums, columns, stage, c);
      __syncthreads();
      end_chunk(sums, columns, stage, c);
      stage = after(stage);
    }
    wait_for_groups<0>();
    for (int i = 0; i < 3; ++i) __syncthreads();  // while the other warps multiply the last chunk
  }

  // Executes as many barriers as end_chunk does for those that prepare chunk c.
  DEV void meet_preparing(int c) const {
    if (kTask != Task::kReadStates && steep_[c & 1]) {
      __syncthreads();
      __syncthreads();
    }
    if (kLogit) __syncthreads();
  }

  DEV static int after(int stage) { return stage + 1 == kStages ? 0 : stage + 1; }

  // --- Layout. ---

  DEV gated::Stage<kKeys> stage_of(int index) const {
    const u32 base = base_ + index * kStageBytes;
    const int wide = kGpuChunk * kKeys * 2;
    return {{base}, {base + wide}, {base + 2 * wide}};
  }
  DEV Latents theta_of(int index) const {
    if constexpr (kLogit) return {base_ + index * kStageBytes + gated::gpu_stage_bytes(kKeys)};
    if constexpr (kTask == Task::kWeights) return {stage_of(index).v.base};
    return {kTask == Task::kValues ? stage_of(index).q.base : stage_of(index).k.base};
  }
  DEV Latents p_of(int index) const {
    if constexpr (kLogit) return {stage_of(index).v.base};
    return {kTask == Task::kValues ? stage_of(index).k.base : stage_of(index).q.base};
  }
  DEV Latents w_of(int index) const { return {theta_of(index).base + kGpuChunk * kGpuPiece * 2}; }

  DEV u32* word(const Latents& tile, int r, int pair) const {
    return reinterpret_cast<u32*>(shared_memory() + (tile.at(r, pair >> 2) - base_)) + (pair & 3);
  }
  DEV int pair_of(int p) const { return lane_ + 32 * p; }
  // The i-th row of this warp, in token order.
  DEV int row_of(int i) const {
    const int first = thread_ / 32 * kRowsEach;
    return kReverse ? first + kRowsEach - 1 - i : first + i;
  }
  DEV bool there(int c, int r) const { return token(c, r) < at_.tokens; }
  DEV int latent_of(int column) const { return (kAcross ? at_.piece * kGpuPiece : 0) + column; }
  DEV int column_of(int x) const { return 2 * pair_of(x / 2) + x % 2; }
  DEV long long latents_at(long long place) const { return place * in_.latents; }

  // --- Carried values. ---

  // This lane's columns, each with its place in [.., L].
  template <typename Work>
  DEV void each_column(long long place, const Work& work) const {
    UNROLL for (int x = 0; x < kColumns; ++x) {
      const int latent = latent_of(column_of(x));
      if (latent < in_.latents) work(x, latents_at(place) + latent);
    }
  }

  DEV void load_carried() {
    UNROLL for (int x = 0; x < kColumns; ++x) {
      sum_[x] = 0;
      maximum_[x] = -infinity();
    }
    const float *sums = in_.normalizer, *maxima = in_.maximum;
    if (!maxima) return;
    each_column(at_.state, [&](int x, long long place) {
      if (sums) sum_[x] = sums[place];
      maximum_[x] = maxima[place];
    });
  }

  DEV void write_carried() {
    const bool writes = thread_ < 32 && (kAcross || at_.piece == 0);
    float *sums = in_.last_normalizer, *maxima = in_.last_maximum;
    if (!writes || !maxima) return;
    each_column(at_.state, [&](int x, long long place) {
      if (sums) sums[place] = sum_[x];
      maxima[place] = maximum_[x];
    });
  }

  // [chunks, heads, 2, L]
  DEV float* carry_of(int c) const {
    const long long number =
        gated::gpu_first_chunk(at_.row, at_.first, scan_.tokens, scan_.bounds != nullptr) + chunk(c);
    return in_.carries + (number * scan_.heads + at_.head) * 2 * in_.latents;
  }

  DEV void fetch(int c, int stage) {
    if (c < at_.end) {
      Base::fetch_inputs(stage_of(stage), c);
      if constexpr (kLogit && !kApart) fetch_latents(stage, c);
    }
    end_group();
  }
  DEV void fetch_latents(int stage, int c) const {
    fetch_piece(theta_of(stage), in_.theta, c);
    fetch_piece(w_of(stage), in_.weights, c);
  }

  // For a tensor whose address this thread does not keep: registers are scarce.
  DEV void fetch_piece(const Latents& to, const GpuTimed& x, int c) const {
    constexpr int kPieces = kGpuPiece / 8;
    const int piece = thread_ % kPieces, latent = latent_of(piece * 8);
    UNROLL_BY(1) for (int r = thread_ / kPieces; r < kGpuChunk; r += kGpuThreads / kPieces) {
      const bool has = there(c, r) && latent < in_.latents;
      const u16* from = gated::head_of<const u16>(x, scan_, at_, latent) + times(token(c, r), x.token);
      copy16(to.at(r, piece), has ? from : x.data, has ? 16 : 0);
    }
  }

  // --- A chunk's U and W (weights_gpu-inl.h). ---

  // The references of a chunk's columns.
  struct Columns {
    float sum[kColumns], maximum[kColumns];  // before the chunk
    float top[kColumns], base[kColumns];     // of the running maximum: its last value, and its first finite one
    float to[kColumns];                      // the reference of U and W; 0 if there is none
    float factor[kColumns];                  // factor on S, which is relative to the preceding chunk's reference
  };

  // Between begin_chunk and the next steps all preparing warps synchronise.
  DEV void begin_chunk(Columns& columns, int stage, int c) const;
  DEV void sum_chunk(float (*sums)[kColumns], Columns& columns, int stage, int c) const;
  DEV void end_chunk(float (*sums)[kColumns], const Columns& columns, int stage, int c);
  DEV void before(Columns& columns, int c) const;
  // Maxima of each warp's eight tokens. full: the chunk has all of its tokens.
  DEV void find_maxima(const Latents& theta, int c, bool full) const;
  // Also the first finite value of each column.
  template <bool kFull>
  DEV void find_firsts(const Latents& theta, int c) const;
  // Calls work(w, x, number) for what warp w left for this lane's columns in [warps, latents].
  template <typename Work>
  DEV void each_warp(const float* numbers, const Work& work) const;
  DEV void choose(Columns& columns, int c) const;
  // Replaces theta by W.
  template <bool kFull>
  DEV void sum_up(float (*sums)[kColumns], const Columns& columns, const Latents& theta, int c) const;
  // add_up: N before this warp's tokens and after the chunk. divide: what is divided by it.
  DEV void add_up(float* front, float* all, const Columns& columns) const;
  DEV void divide(float (*sums)[kColumns], const float* front, const Columns& columns, int stage);
  DEV void multiply_p(const float (*by)[kColumns], const Latents& tile) const;

  DEV static void multiply_word(u32* at, const float* by) {
    const u32 both = *at;
    *at = pack(unpack_low(both) * by[0], unpack_high(both) * by[1]);
  }
  // Replaces logits by p, times `by`, in this warp's own rows.
  template <bool kMultiply>
  DEV void soften(const Latents& tile, const float (*by)[kColumns]) const;
  // Reduces eight numbers per lane over all lanes: lanes exchange half of their numbers until each has one.
  template <typename Join>
  DEV void reduce_rows(float* x, const Join& join) const;
  // D of every token: the sum of U w from it on, plus that of later chunks; with kSteep only that of later chunks,
  // unscaled.
  template <bool kSteep>
  DEV void sum_weights(const Columns& columns, int stage);
  // The sums and maxima after this chunk; for D, sum_weights has computed them.
  DEV void carry_on(const Columns& columns, const float* all);

  // Multiplies S by the chunk's factors and writes it in 16 bits: the product, or S before it if logits are steep.
  DEV void write_state(int c) {
    steep_now_ = steep_[c & 1] != 0;
    if (steep_now_ && kOut) Base::write_state(0);
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 4; ++x) {
          const int row = (warp_ * kRows + i) * 16 + (lane_ >> 2) + x / 2 * 8;
          const int column = side_ * 32 + j * 8 + (lane_ & 3) * 2 + x % 2;
          state_[i][j][x] *= factors_[kAcross ? column : row];
        }
      }
    }
    if (!steep_now_ && kOut) Base::write_state(0);
  }

  // --- The products. ---

  DEV void read(int stage, int tile, int c) const {
    const auto in = stage_of(stage);
    float o[4][4] = {};
    u32 q[kKeys / 16][4];
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      left(q[i], in.q, lane_, tile * 16, i);
      Base::multiply_state(o, q[i], i, 0);
    }
    if (!(steep_now_ && kAcross)) {
      UNROLL_BY(1) for (int keys = 0; keys < tile; ++keys) add_pairs<false>(o, q, in, tile, keys);
      add_pairs<true>(o, q, in, tile, tile);
    }
    if constexpr (kAcross) finish(o, stage, tile);
    if constexpr (kTask == Task::kWeights) return Base::write(o, tile, c);
    Base::write_to(Base::o_, scan_.o.token, o, tile, c);
  }

  // Adds to o the contribution of 16 earlier tokens (kMask: of these 16 tokens themselves).
  template <bool kMask>
  DEV void add_pairs(float (*o)[4], const u32 (*q)[4], const gated::Stage<kKeys>& in, int tile, int keys) const {
    float a[2][4] = {};
    if (!steep_now_) Base::multiply_keys(a, q, in.k, keys);
    u32 weights[4];
    UNROLL for (int i = 0; i < 2; ++i) {
      const int s = keys * 16 + i * 8 + (lane_ & 3) * 2;
      UNROLL for (int half = 0; half < 2; ++half) {
        const int r = tile * 16 + (lane_ >> 2) + 8 * half;
        float w[2];
        UNROLL for (int j = 0; j < 2; ++j) {
          w[j] = steep_now_ ? pairs()[r * kGpuChunk + s + j] : a[i][2 * half + j];
          if (kMask && s + j > r) w[j] = 0;
        }
        weights[2 * i + half] = pack(w[0], w[1]);
      }
    }
    Base::multiply_values(o, weights, in.v, keys);
  }

  // Multiplies o by its factor, and handles D.
  DEV void finish(float (*o)[4], int stage, int tile) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      const int r = tile * 16 + (lane_ >> 2) + 8 * half;
      UNROLL for (int j = 0; j < 4; ++j) {
        const int column = side_ * 32 + j * 8 + (lane_ & 3) * 2;
        const Two outer = *reinterpret_cast<const Two*>(outer_ + r * kGpuFloatRow + column);
        float* x = o[j] + 2 * half;
        if constexpr (kLogit) {
          const u32 w = *word(theta_of(stage), r, column / 2);
          x[0] = (x[0] - outer.x[0]) * unpack_low(w);
          x[1] = (x[1] - outer.x[1]) * unpack_high(w);
        } else {
          x[0] *= outer.x[0];
          x[1] *= outer.x[1];
        }
        if (steep_now_) {
          x[0] += outputs()[r * kGpuPiece + column];
          x[1] += outputs()[r * kGpuPiece + column + 1];
        }
      }
      keep_order();  // so that both halves are not in registers at once
    }
  }

  DEV void update(int stage) {
    const auto in = stage_of(stage);
    UNROLL_BY(2) for (int s = 0; s < kGpuChunk / 16; ++s) {
      u32 v[2][4];
      UNROLL for (int pair = 0; pair < 2; ++pair) right(v[pair], in.v, lane_, s * 16, side_ * 2 + pair);
      UNROLL for (int i = 0; i < kRows; ++i) {
        u32 k[4];
        left_transposed(k, in.k, lane_, s * 16, warp_ * kRows + i);
        UNROLL for (int pair = 0; pair < 2; ++pair) {
          multiply(state_[i][2 * pair], k, v[pair][0], v[pair][1]);
          multiply(state_[i][2 * pair + 1], k, v[pair][2], v[pair][3]);
        }
      }
    }
  }

  // --- Chunks with steep logits (steep_gpu-inl.h). ---

  DEV float* log_sums() const { return in_.scratch + (at_.state * at_.pieces + at_.piece) * kGpuScratch; }
  DEV float* pairs() const { return log_sums() + kGpuChunk * 128; }
  DEV float* outputs() const { return pairs() + kGpuChunk * kGpuChunk; }
  DEV float theta_at(int c, int r, int column) const;
  DEV float number(const Latents& tile, int r, int column) const {
    const u32 both = *word(tile, r, column / 2);
    return column % 2 ? unpack_high(both) : unpack_low(both);
  }
  DEV void spell_out(const Columns& columns, int stage, int c);
  DEV void find_log_sums(const Columns& columns, int c) const;
  DEV void find_pairs(int stage, int c) const;
  DEV void find_dots(int stage) const;
  DEV void find_outputs(int stage, int c) const;
  DEV void set_operands(const Columns& columns, int stage, int c);

  const GpuLatte& in_;
  const u32 base_;
  float *maxima_, *firsts_, *sums_;          // [warps, latents], warps in token order
  float* factors_;                           // [latents]
  volatile u32* steep_;                      // for even and odd chunks: whether logits rise steeply
  float* outer_;                             // of a chunk, [tokens, kGpuFloatRow]: 1 / N, or D
  int order_;                                // this warp's place in token order
  float sum_[kColumns], maximum_[kColumns];  // N and M; in reverse D and its reference
  bool steep_now_ = false;
};

}  // namespace cortado::latent

#include "cortado/primitives/latte_scan/steep_gpu-inl.h"
#include "cortado/primitives/latte_scan/weights_gpu-inl.h"
