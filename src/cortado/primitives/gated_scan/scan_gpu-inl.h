// The walk of a block of threads through one head's tokens: kernel_gpu.h says what it computes, kernel.cu how.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/gated_scan/gates_gpu-inl.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

using namespace device;

// One stage of inputs.
template <int kKeys>
struct Stage {
  Tile<kKeys * 2> q, k;
  Tile<kGpuPiece * 2> v;
};

// Which tokens and numbers a block has.
struct Place {
  int row, head, piece, pieces, part;
  long long first;  // token of the row
  int tokens;       // of the row
  int chunks;       // of the row
  int begin, end;   // chunks of the part, in the scan's order
  long long state;  // number of its state
};

DEV Place place_of(const GpuScan& scan) {
  Place place;
  place.pieces = (scan.values + kGpuPiece - 1) / kGpuPiece;
  int rest = blockIdx.x;
  place.piece = rest % place.pieces;
  rest /= place.pieces;
  place.head = rest % scan.heads;
  place.row = rest / scan.heads;
  place.part = blockIdx.y;
  place.first = scan.bounds ? scan.bounds[place.row] : 0;
  place.tokens = scan.bounds ? static_cast<int>(scan.bounds[place.row + 1] - place.first) : scan.tokens;
  place.chunks = (place.tokens + kGpuChunk - 1) / kGpuChunk;
  const int each = scan.part_tokens / kGpuChunk;
  place.begin = place.part * each;
  place.end = place.begin + each < place.chunks ? place.begin + each : place.chunks;
  place.state = (static_cast<long long>(place.row) * scan.parts + place.part) * scan.heads + place.head;
  return place;
}

template <typename T>
DEV T* head_of(const GpuTimed& x, const GpuScan& scan, const Place& at, int from) {
  const int head = at.head / (scan.heads / x.heads);
  const long long batch = scan.bounds ? 0 : at.row;
  return x.data ? static_cast<T*>(x.data) + batch * x.batch + at.first * x.token + head * x.head + from : nullptr;
}

// kStates: nothing is read, o is not computed. kDot: o is multiplied by `with` as well, and states meet at segments' ends.
enum class Task { kRead, kDot, kStates };

template <int kKeys, bool kReverse, Task kTask>
class Scan {
  static constexpr int kRows = kKeys / 64;  // of 16 keys, which a warp has of the state
  static constexpr int kStages = gpu_stages(kKeys);
  static constexpr bool kTwoStates = gpu_state_copies(kKeys) == 2;
  static constexpr bool kReads = kTask != Task::kStates;
  static constexpr int kHeld = kKeys == 64 ? 4 : 1;  // of q's operands, those that stay in registers
  static constexpr int kSteps = kKeys == 64 ? 4 : 2;  // at once: more need too many registers

 public:
  DEV explicit Scan(const GpuScan& scan)
      : scan_(scan), at_(place_of(scan)), thread_(CORTADO_THREAD), lane_(thread_ & 31), warp_((thread_ >> 5) & 3),
        side_(thread_ >> 7) {
    unsigned char* shared = shared_memory();
    base_ = shared_address(shared);
    states_ = shared + kStages * gpu_stage_bytes(kKeys);
    gates_ = reinterpret_cast<float*>(states_ + gpu_state_copies(kKeys) * kKeys * kGpuPiece * 2);
    sums_ = gates_ + 4 * kGpuChunk;
    q_ = start<kKeys>(scan.q, 0);
    k_ = start<kKeys>(scan.k, 0);
    v_ = start<kGpuPiece>(scan.v, at_.piece * kGpuPiece);
    g_ = head_of<const float>(scan.g, scan, at_, 0);
    o_ = head_of<u16>(scan.o, scan, at_, eight());
    if constexpr (kTask == Task::kDot) {
      with_ = head_of<const u16>(scan.with, scan, at_, eight());
      const long long batch = scan.bounds ? 0 : at_.row, slab = at_.piece * 2 + side_;
      dots_ = scan.dots + ((slab * scan.batch + batch) * scan.tokens + at_.first) * scan.heads + at_.head;
    }
  }

  DEV void run() {
    begin();
    fetch_gates(at_.begin);
    for (int i = 0; i + 1 < kStages; ++i) fetch(at_.begin + i, i);
    wait_for_groups<kStages - 2>();
    __syncthreads();
    if (thread_ < 32) sum_gates(gates_of(at_.begin), sums_of(at_.begin), lane_);
    int stage = 0;
    float kept = 1;
    for (int c = at_.begin; c < at_.end; ++c) {
      wait_for_groups<kStages - 2>();
      __syncthreads();
      fetch(c + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      const auto in = stage_of(stage);
      const Sums sums = sums_of(c);
      const int tile = c & 1 ? 3 - warp_ : warp_;  // of 16 tokens: a warp's work depends on it, so they take turns
      if (tile == 0 && side_ == 0) sum_gates(gates_of(c + 1), sums_of(c + 1), lane_);
      if constexpr (kTask == Task::kDot) meet(c, sums);
      if constexpr (kReads) read(in, sums, tile, c);
      kept *= *sums.keeps;
      if constexpr (kReads && !kTwoStates) __syncthreads();  // everybody has read the state
      update(in, sums, c);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    wait_for_groups<0>();
    end(kept);
  }

 private:
  // The chunk, and the token, that come at place c and p on the way; places in front of the last token are empty.
  DEV int chunk(int c) const { return kReverse ? at_.chunks - 1 - c : c; }
  DEV int token(int c, int r) const {
    return kReverse ? chunk(c) * kGpuChunk + kGpuChunk - 1 - r : c * kGpuChunk + r;
  }

  DEV Stage<kKeys> stage_of(int index) const {
    const u32 base = base_ + index * gpu_stage_bytes(kKeys);
    const int wide = kGpuChunk * kKeys * 2;
    return {{base}, {base + wide}, {base + 2 * wide}};
  }
  DEV float* gates_of(int c) const { return gates_ + (c & 3) * kGpuChunk; }
  DEV Sums sums_of(int c) const { return Sums(sums_ + (c & 1) * kGpuSums); }
  DEV unsigned char* state_bytes(int c) const {
    return states_ + (kTwoStates ? (c & 1) * kKeys * kGpuPiece * 2 : 0);
  }

  // Where this thread's first row of a chunk begins, of the next chunk to be fetched.
  template <int kWidth>
  DEV const u16* start(const GpuTimed& x, int from) const {
    constexpr int kPieces = kWidth / 8;
    const int t = token(at_.begin, thread_ / kPieces);
    return head_of<const u16>(x, scan_, at_, from) + times(t, x.token) + thread_ % kPieces * 8;
  }

  // A chunk's inputs, and the gates of the one that comes after it.
  DEV void fetch(int c, int stage) {
    if (c < at_.end) {
      const auto to = stage_of(stage);
      if constexpr (kReads) fetch_rows<kKeys>(to.q, q_, scan_.q, scan_.keys, c);
      fetch_rows<kKeys>(to.k, k_, scan_.k, scan_.keys, c);
      fetch_rows<kGpuPiece>(to.v, v_, scan_.v, scan_.values - at_.piece * kGpuPiece, c);
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

  template <int kWidth>
  DEV void fetch_rows(Tile<kWidth * 2> to, const u16*& from, const GpuTimed& x, int width, int c) const {
    constexpr int kPieces = kWidth / 8, kAtOnce = kGpuThreads / kPieces;
    const int first = thread_ / kPieces, piece = thread_ % kPieces;
    const int step = kReverse ? -x.token : x.token;
    UNROLL for (int i = 0; i < kGpuChunk / kAtOnce; ++i) {
      const int r = first + i * kAtOnce;
      const bool there = token(c, r) < at_.tokens && piece * 8 < width;
      copy16(to.at(r, piece), there ? from + times(i * kAtOnce, step) : scan_.k.data, there ? 16 : 0);
    }
    from += times(kGpuChunk, step);
  }

  // This lane's place in the state: rows r and r + 8, columns c and c + 1.
  DEV int key_of(int i) const { return (warp_ * kRows + i) * 16 + (lane_ >> 2); }
  DEV int value_of(int j) const { return at_.piece * kGpuPiece + side_ * 32 + j * 8 + (lane_ & 3) * 2; }

  // Each number of the state that is there, with its place in [K, V] of a row and head.
  template <typename Work>
  DEV void each(const Work& work) {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 4; ++x) {
          const int r = key_of(i) + x / 2 * 8, c = value_of(j) + x % 2;
          if (r < scan_.keys && c < scan_.values) work(state_[i][j][x], (at_.state * scan_.keys + r) * scan_.values + c);
        }
      }
    }
  }

  DEV void begin() {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] = 0;
      }
    }
    const float* initial = scan_.initial;
    const float factor = scan_.initial_factor;
    if (initial) each([=](float& number, long long place) { number = initial[place] * factor; });
    if constexpr (kReads) write_state(at_.begin);
  }

  DEV void end(float kept) {
    if (kTask == Task::kStates && thread_ == 0 && at_.piece == 0) scan_.kept[at_.state] = kept;
    float* last = scan_.last;
    const float factor = scan_.last_factor;
    if (last) each([=](float& number, long long place) { last[place] = number * factor; });
  }

  // In 16 bits, for all warps to read in chunk c.
  DEV void write_state(int c) const {
    const Tile<kGpuPiece * 2> tile = {static_cast<u32>(kTwoStates ? (c & 1) * kKeys * kGpuPiece * 2 : 0)};
    const u32 place = tile.at(warp_ * kRows * 16 + (lane_ >> 2), side_ * 4) + (lane_ & 3) * 4;
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int half = 0; half < 2; ++half) {
          const u32 at = (place ^ (j << 4)) + (16 * i + 8 * half) * kGpuPiece * 2;
          *reinterpret_cast<u32*>(states_ + at) = pack(state_[i][j][2 * half], state_[i][j][2 * half + 1]);
        }
      }
    }
  }

  // o of 16 tokens of the chunk and 32 values.
  DEV void read(const Stage<kKeys>& in, const Sums& sums, int tile, int c) const {
    u32 with[2][4];
    if constexpr (kTask == Task::kDot) load_with(with, tile, c);  // needed last: here its way is free
    float o[4][4] = {};
    if (*sums.any) {
      read_rows<true>(o, in, sums, tile, c);
    } else {
      read_rows<false>(o, in, sums, tile, c);
    }
    UNROLL for (int j = 0; j < 4; ++j) {
      UNROLL for (int x = 0; x < 4; ++x) o[j][x] *= scan_.scale;
    }
    if constexpr (kTask == Task::kDot) write_dots(o, with, tile, c);
    write(o, tile, c);
  }

  template <bool kCuts>
  DEV void read_rows(float (*o)[4], const Stage<kKeys>& in, const Sums& sums, int tile, int c) const {
    const int first = tile * 16, row = first + (lane_ >> 2);
    const Tile<kGpuPiece * 2> state = {shared_address(state_bytes(c))};
    u32 q[kHeld][4];
    UNROLL_BY(kSteps) for (int i = 0; i < kKeys / 16; ++i) {
      left(q[i % kHeld], in.q, lane_, first, i);
      UNROLL for (int pair = 0; pair < 2; ++pair) {
        u32 s[4];
        right(s, state, lane_, i * 16, side_ * 2 + pair);
        multiply(o[2 * pair], q[i % kHeld], s[0], s[1]);
        multiply(o[2 * pair + 1], q[i % kHeld], s[2], s[3]);
      }
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

  // What 16 tokens before (kMask: or these themselves) give to o.
  template <bool kMask, bool kCuts>
  DEV void add_pairs(float (*o)[4], u32 (*q)[4], const Stage<kKeys>& in, const Sums& sums, const Rows& rows,
                     int keys) const {
    float a[2][4] = {};
    UNROLL_BY(kSteps) for (int i = 0; i < kKeys / 16; ++i) {
      u32 k[4];
      if constexpr (kHeld == 1) left(q[0], in.q, lane_, rows.number[0] - (lane_ >> 2), i);
      right_transposed(k, in.k, lane_, keys * 16, i);
      multiply(a[0], q[i % kHeld], k[0], k[1]);
      multiply(a[1], q[i % kHeld], k[2], k[3]);
    }
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
    UNROLL for (int pair = 0; pair < 2; ++pair) {
      u32 v[4];
      right(v, in.v, lane_, keys * 16, side_ * 2 + pair);
      multiply(o[2 * pair], weights, v[0], v[1]);
      multiply(o[2 * pair + 1], weights, v[2], v[3]);
    }
  }

  // Eight values of one token lie together in memory: lane l % 4 has the l % 4-th eight of them, in exchange for two of
  // each eight, as products have them.
  DEV int eight() const { return at_.piece * kGpuPiece + side_ * 32 + (lane_ & 3) * 8; }

  DEV void write(const float (*o)[4], int tile, int c) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      u32 both[4];
      UNROLL for (int j = 0; j < 4; ++j) both[j] = pack(o[j][2 * half], o[j][2 * half + 1]);
      exchange(both, lane_);
      const int t = token(c, tile * 16 + (lane_ >> 2) + 8 * half);
      if (t >= at_.tokens || eight() >= scan_.values) continue;
      *reinterpret_cast<Four*>(o_ + times(t, scan_.o.token)) = {both[0], both[1], both[2], both[3]};
    }
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

  // Where the state of this segment's end lies, as the threads have it.
  DEV long long crossing(int c) const {
    const long long segment = gpu_first_segment(at_.row, at_.first, scan_.tokens, scan_.bounds != nullptr) +
                              chunk(c) / (kGpuSegment / kGpuChunk);
    return (segment * scan_.heads + at_.head) * at_.pieces + at_.piece;
  }
  // Whether chunk c is the first of a segment on the way, or the last.
  DEV bool at_edge(int c, bool front) const {
    const int number = chunk(c), each = kGpuSegment / kGpuChunk;
    return front ? number % each == 0 : number % each == each - 1 || number == at_.chunks - 1;
  }

  // In front of a segment: <this state, the other call's>.
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

  DEV void keep_state(int c) const {
    if (scan_.crossings || !scan_.crossing_states || !at_edge(c, kReverse)) return;
    float* to = scan_.crossing_states + crossing(c) * kKeys * kGpuPiece;
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        const float* x = state_[i][j];
        reinterpret_cast<FourFloats*>(to)[(i * 4 + j) * kGpuThreads + thread_] = {x[0], x[1], x[2], x[3]};
      }
    }
  }

  DEV void update(const Stage<kKeys>& in, const Sums& sums, int c) {
    const float kept = *sums.keeps;
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] *= kept;
      }
    }
    UNROLL_BY(kSteps) for (int s = 0; s < kGpuChunk / 16; ++s) {
      const u32* to_end = sums.to_end + s * 8 + (lane_ & 3);
      const u32 low = to_end[0], high = to_end[4];
      u32 v[2][4];
      UNROLL for (int pair = 0; pair < 2; ++pair) {
        right(v[pair], in.v, lane_, s * 16, side_ * 2 + pair);
        UNROLL for (int x = 0; x < 4; ++x) v[pair][x] = multiply2(v[pair][x], x % 2 ? high : low);
      }
      UNROLL for (int i = 0; i < kRows; ++i) {
        u32 k[4];
        left_transposed(k, in.k, lane_, s * 16, warp_ * kRows + i);
        UNROLL for (int pair = 0; pair < 2; ++pair) {
          multiply(state_[i][2 * pair], k, v[pair][0], v[pair][1]);
          multiply(state_[i][2 * pair + 1], k, v[pair][2], v[pair][3]);
        }
      }
    }
    if constexpr (kTask == Task::kDot) keep_state(c);
    if constexpr (kReads) write_state(c + 1);
  }

  const GpuScan& scan_;
  const Place at_;
  const int thread_, lane_, warp_, side_;  // side_: of the piece's values, the first 32 or the other
  u32 base_;
  unsigned char* states_;
  float *gates_, *sums_;
  const u16 *q_, *k_, *v_;  // where this thread's first row of the chunk begins that is fetched next
  const float* g_;
  u16* o_;
  const u16* with_;
  float* dots_;
  float state_[kRows][4][4];
};

}  // namespace cortado::gated
