// The gated scan with a gate for each head, on tensor cores: kernel_gpu.h says what it computes.
//
// A block of four warps has one head of one row, and 32 of its values. It goes through time in chunks of 64 tokens, whose
// inputs come through three stages of shared memory while the ones before are computed; the state stays in registers
// (float32), and beside that in 16 bits where the warps read it. With P_t the sum of the gates from the chunk's start to t:
//   o = scale ((q e^P) S + (q k^T * e^{P_t - P_s}, s <= t) v)        S <- e^{P_end} S + (k e^{P_end - P_s})^T v
// Each warp has 16 tokens of o, and K/4 rows of S.
//
// P_t - P_s would be NaN for gates of -inf, and inexact behind large ones. So a gate below kCut (e^-60: what it leaves is
// below any rounding) begins a stretch of its own: sums begin anew there, and nothing passes from one stretch to another.
//
// Variants: KEYS=64 | KEYS=128 | KEYS=64 CORTADO_HALF | KEYS=128 CORTADO_HALF
#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

#ifndef KEYS
#define KEYS 64
#endif

namespace cortado::gated {

using namespace cuda;

constexpr float kCut = -60.0f;

// One stage of inputs.
template <int kKeys>
struct Stage {
  Tile<kKeys * 2> q, k;
  Tile<kGpuPiece * 2> v;
  const float* gates;
};

template <int kKeys>
DEV Stage<kKeys> stage_of(unsigned char* shared, int index) {
  unsigned char* bytes = shared + index * gpu_stage_bytes(kKeys);
  const u32 base = shared_address(bytes);
  const int wide = kGpuChunk * kKeys * 2;
  return {{base},
          {base + wide},
          {base + 2 * wide},
          reinterpret_cast<const float*>(bytes + 2 * wide + kGpuChunk * kGpuPiece * 2)};
}

// Which tokens and numbers a block has.
struct Place {
  int row, head, piece, part;
  long long first;  // token of the row
  int tokens;       // of the row
  int begin, end;   // of the part, in the scan's order
  long long state;  // number of its state
};

DEV Place place_of(const GpuScan& scan) {
  Place place;
  const int pieces = scan.values / kGpuPiece;
  int rest = blockIdx.x;
  place.piece = rest % pieces;
  rest /= pieces;
  place.head = rest % scan.heads;
  place.row = rest / scan.heads;
  place.part = blockIdx.y;
  place.first = scan.bounds ? scan.bounds[place.row] : 0;
  place.tokens = scan.bounds ? static_cast<int>(scan.bounds[place.row + 1] - place.first) : scan.tokens;
  place.begin = place.part * scan.part_tokens;
  place.end = place.begin + scan.part_tokens < place.tokens ? place.begin + scan.part_tokens : place.tokens;
  place.state = (static_cast<long long>(place.row) * scan.parts + place.part) * scan.heads + place.head;
  return place;
}

template <typename T>
DEV T* head_of(const GpuTimed& x, const GpuScan& scan, const Place& at, int from) {
  const int head = at.head / (scan.heads / x.heads);
  const long long batch = scan.bounds ? 0 : at.row;
  return static_cast<T*>(x.data) + batch * x.batch + at.first * x.token + head * x.head + from;
}

// Of a chunk's 64 gates: where the stretch began that token t is in, as the number of cuts before; the sums since then.
struct Sums {
  float *cuts, *sums, *to_end;  // to_end: exp(P_end - P_t), 0 over a cut
};

// A stretch behind another one.
DEV void join(float& cuts, float& sum, float cuts_before, float sum_before) {
  if (cuts == 0) sum += sum_before;
  cuts += cuts_before;
}

// Every warp for itself, two gates a lane; warp 0 writes them down. exp(P_end), 0 over a cut.
DEV float sum_gates(const float* gates, const Sums& out, int lane, bool write) {
  float cut[2], sum[2];
  for (int i = 0; i < 2; ++i) {
    const float gate = gates[2 * lane + i];
    cut[i] = gate < kCut ? 1.0f : 0.0f;
    sum[i] = gate < kCut ? 0.0f : gate;
  }
  join(cut[1], sum[1], cut[0], sum[0]);
  float cuts = cut[1], total = sum[1];
  for (int d = 1; d < 32; d <<= 1) {
    const float cuts_before = __shfl_up_sync(~0u, cuts, d), sum_before = __shfl_up_sync(~0u, total, d);
    if (lane >= d) join(cuts, total, cuts_before, sum_before);
  }
  const float cuts_before = __shfl_up_sync(~0u, cuts, 1), sum_before = __shfl_up_sync(~0u, total, 1);
  if (lane > 0) join(cut[0], sum[0], cuts_before, sum_before);
  const float end_cuts = __shfl_sync(~0u, cuts, 31), end = __shfl_sync(~0u, total, 31);
  if (write) {
    const float both_cuts[2] = {cut[0], cuts}, both[2] = {sum[0], total};
    for (int i = 0; i < 2; ++i) {
      out.cuts[2 * lane + i] = both_cuts[i];
      out.sums[2 * lane + i] = both[i];
      out.to_end[2 * lane + i] = both_cuts[i] == end_cuts ? exponential(end - both[i]) : 0.0f;
    }
  }
  return end_cuts == 0 ? exponential(end) : 0.0f;
}

// kOnlyStates: nothing is read, o is not computed.
template <int kKeys, bool kReverse, bool kOnlyStates = false>
class Scan {
  static constexpr int kRows = kKeys / 64;  // of 16 keys, which a warp has of the state

 public:
  DEV explicit Scan(const GpuScan& scan)
      : scan_(scan), at_(place_of(scan)), lane_(CORTADO_THREAD & 31), warp_(CORTADO_THREAD >> 5) {
    shared_ = shared_memory();
    unsigned char* behind = shared_ + kGpuStages * gpu_stage_bytes(kKeys);
    read_.base = shared_address(behind);
    float* numbers = reinterpret_cast<float*>(behind + kKeys * kGpuPiece * 2);
    sums_ = {numbers, numbers + kGpuChunk, numbers + 2 * kGpuChunk};
    state_bytes_ = behind;
  }

  DEV void run() {
    begin();
    fetch(at_.begin, 0);
    fetch(at_.begin + kGpuChunk, 1);
    int stage = 0;
    float kept = 1;
    for (int p = at_.begin; p < at_.end; p += kGpuChunk) {
      wait_for_groups<1>();
      __syncthreads();
      fetch(p + 2 * kGpuChunk, (stage + 2) % kGpuStages);
      const auto in = stage_of<kKeys>(shared_, stage);
      const float chunk_keeps = sum_gates(in.gates, sums_, lane_, warp_ == 0);
      kept *= chunk_keeps;
      __syncthreads();
      if constexpr (!kOnlyStates) {
        read(in, p);
        __syncthreads();  // everybody has read the state
      }
      update(in, chunk_keeps);
      stage = (stage + 1) % kGpuStages;
    }
    end(kept);
  }

 private:
  // The token that is the p-th on the way.
  DEV int token(int p) const { return kReverse ? at_.tokens - 1 - p : p; }

  DEV void fetch(int begin, int stage) {
    const int thread = CORTADO_THREAD;
    if (begin < at_.end) {
      const auto to = stage_of<kKeys>(shared_, stage);
      if constexpr (!kOnlyStates) fetch_rows<kKeys>(to.q, scan_.q, 0, begin, thread);
      fetch_rows<kKeys>(to.k, scan_.k, 0, begin, thread);
      fetch_rows<kGpuPiece>(to.v, scan_.v, at_.piece * kGpuPiece, begin, thread);
      if (thread < kGpuChunk) {
        const int p = begin + thread, t = token(p) + scan_.shift;
        const bool there = scan_.g.data && p < at_.end && t >= 0 && t < at_.tokens;
        const float* gates = head_of<const float>(scan_.g, scan_, at_, 0);
        copy4(shared_address(to.gates + thread), there ? gates + t * scan_.g.token : gates, there ? 4 : 0);
      }
    }
    end_group();
  }

  template <int kWidth>
  DEV void fetch_rows(Tile<kWidth * 2> to, const GpuTimed& x, int from, int begin, int thread) const {
    const u16* numbers = head_of<const u16>(x, scan_, at_, from);
    constexpr int kPieces = kWidth / 8;
    for (int i = thread; i < kGpuChunk * kPieces; i += kGpuThreads) {
      const int r = i / kPieces, piece = i % kPieces, p = begin + r;
      const bool there = p < at_.end;
      copy16(to.at(r, piece), there ? numbers + token(p) * x.token + piece * 8 : numbers, there ? 16 : 0);
    }
  }

  // This lane's place in the state, [K, V] of a row and head: rows r and r + 8, columns c and c + 1.
  DEV long long state_place(int i, int j) const {
    const int r = (warp_ * kRows + i) * 16 + (lane_ >> 2), c = at_.piece * kGpuPiece + j * 8 + (lane_ & 3) * 2;
    return (at_.state * kKeys + r) * scan_.values + c;
  }

  DEV void begin() {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < 4; ++j) {
        const float* there = scan_.initial ? scan_.initial + state_place(i, j) : nullptr;
        for (int half = 0; half < 2; ++half) {
          state_[i][j][2 * half] = there ? there[8 * half * scan_.values] : 0.0f;
          state_[i][j][2 * half + 1] = there ? there[8 * half * scan_.values + 1] : 0.0f;
        }
      }
    }
    if constexpr (!kOnlyStates) write_state();
  }

  DEV void end(float kept) const {
    if (kOnlyStates && CORTADO_THREAD == 0 && at_.piece == 0) scan_.kept[at_.state] = kept;
    if (!scan_.last) return;
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < 4; ++j) {
        float* there = scan_.last + state_place(i, j);
        for (int half = 0; half < 2; ++half) {
          there[8 * half * scan_.values] = state_[i][j][2 * half];
          there[8 * half * scan_.values + 1] = state_[i][j][2 * half + 1];
        }
      }
    }
  }

  // In 16 bits, for all warps to read.
  DEV void write_state() const {
    for (int i = 0; i < kRows; ++i) {
      const int r = (warp_ * kRows + i) * 16 + (lane_ >> 2);
      for (int j = 0; j < 4; ++j) {
        const u32 offset = (lane_ & 3) * 4;
        *reinterpret_cast<u32*>(state_bytes_ + (read_.at(r, j) - read_.base) + offset) =
            pack(state_[i][j][0], state_[i][j][1]);
        *reinterpret_cast<u32*>(state_bytes_ + (read_.at(r + 8, j) - read_.base) + offset) =
            pack(state_[i][j][2], state_[i][j][3]);
      }
    }
  }

  // o of this warp's 16 tokens of the chunk from `begin` on.
  DEV void read(const Stage<kKeys>& in, int begin) const {
    const int first = warp_ * 16, rows[2] = {first + (lane_ >> 2), first + (lane_ >> 2) + 8};
    u32 q[kKeys / 16][4];
    for (int c = 0; c < kKeys / 16; ++c) left(q[c], in.q, lane_, first, c);
    float o[4][4] = {};
    for (int c = 0; c < kKeys / 16; ++c) {
      for (int pair = 0; pair < 2; ++pair) {
        u32 s[4];
        right(s, read_, lane_, c * 16, pair);
        multiply(o[2 * pair], q[c], s[0], s[1]);
        multiply(o[2 * pair + 1], q[c], s[2], s[3]);
      }
    }
    for (int half = 0; half < 2; ++half) {
      const float factor = sums_.cuts[rows[half]] == 0 ? exponential(sums_.sums[rows[half]]) * scan_.scale : 0.0f;
      for (int j = 0; j < 4; ++j) {
        o[j][2 * half] *= factor;
        o[j][2 * half + 1] *= factor;
      }
    }
    for (int keys = 0; keys <= warp_; ++keys) add_pairs(o, q, in, rows, keys);
    write(o, rows, begin);
  }

  // What 16 tokens before (or these themselves) give to o.
  DEV void add_pairs(float (*o)[4], const u32 (*q)[4], const Stage<kKeys>& in, const int* rows, int keys) const {
    float a[2][4] = {};
    for (int c = 0; c < kKeys / 16; ++c) {
      u32 k[4];
      right_transposed(k, in.k, lane_, keys * 16, c);
      multiply(a[0], q[c], k[0], k[1]);
      multiply(a[1], q[c], k[2], k[3]);
    }
    u32 weights[4];
    for (int i = 0; i < 2; ++i) {
      for (int half = 0; half < 2; ++half) {
        float w[2];
        for (int j = 0; j < 2; ++j) {
          const int s = keys * 16 + i * 8 + (lane_ & 3) * 2 + j, t = rows[half];
          const bool counts = s <= t && sums_.cuts[s] == sums_.cuts[t];
          w[j] = counts ? a[i][2 * half + j] * exponential(sums_.sums[t] - sums_.sums[s]) * scan_.scale : 0.0f;
        }
        weights[2 * i + half] = pack(w[0], w[1]);
      }
    }
    for (int pair = 0; pair < 2; ++pair) {
      u32 v[4];
      right(v, in.v, lane_, keys * 16, pair);
      multiply(o[2 * pair], weights, v[0], v[1]);
      multiply(o[2 * pair + 1], weights, v[2], v[3]);
    }
  }

  DEV void write(const float (*o)[4], const int* rows, int begin) const {
    for (int half = 0; half < 2; ++half) {
      const int p = begin + rows[half];
      if (p >= at_.end) continue;
      u16* to = head_of<u16>(scan_.o, scan_, at_, at_.piece * kGpuPiece) + token(p) * scan_.o.token;
      for (int j = 0; j < 4; ++j) {
        *reinterpret_cast<u32*>(to + j * 8 + (lane_ & 3) * 2) = pack(o[j][2 * half], o[j][2 * half + 1]);
      }
    }
  }

  DEV void update(const Stage<kKeys>& in, float kept) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < 4; ++j) {
        for (int x = 0; x < 4; ++x) state_[i][j][x] *= kept;
      }
    }
    for (int c = 0; c < kGpuChunk / 16; ++c) {
      const int s = c * 16 + (lane_ & 3) * 2;
      const u32 low = pack(sums_.to_end[s], sums_.to_end[s + 1]), high = pack(sums_.to_end[s + 8], sums_.to_end[s + 9]);
      u32 v[2][4];
      for (int pair = 0; pair < 2; ++pair) {
        right(v[pair], in.v, lane_, c * 16, pair);
        for (int x = 0; x < 4; ++x) v[pair][x] = multiply2(v[pair][x], x % 2 ? high : low);
      }
      for (int i = 0; i < kRows; ++i) {
        u32 k[4];
        left_transposed(k, in.k, lane_, c * 16, warp_ * kRows + i);
        for (int pair = 0; pair < 2; ++pair) {
          multiply(state_[i][2 * pair], k, v[pair][0], v[pair][1]);
          multiply(state_[i][2 * pair + 1], k, v[pair][2], v[pair][3]);
        }
      }
    }
    if constexpr (!kOnlyStates) write_state();
  }

  const GpuScan& scan_;
  const Place at_;
  const int lane_, warp_;
  unsigned char *shared_, *state_bytes_;
  Tile<kGpuPiece * 2> read_;  // the state, 16 bits
  Sums sums_;
  float state_[kRows][4][4];
};

// A thread a number of a row's and head's state, through the parts.
DEV void join_parts(const GpuJoin& join) {
  const int i = blockIdx.x * kGpuThreads + CORTADO_THREAD, head = blockIdx.y % join.heads,
            row = blockIdx.y / join.heads;
  if (i >= join.numbers) return;
  const long long whole = (static_cast<long long>(row) * join.heads + head) * join.numbers + i;
  float state = join.initial ? join.initial[whole] : 0.0f;
  for (int part = 0; part < join.parts; ++part) {
    const long long place = (static_cast<long long>(row) * join.parts + part) * join.heads + head;
    float& there = join.states[place * join.numbers + i];
    const float left = there;
    there = state;
    state = join.kept[place] * state + left;
  }
  if (join.last) join.last[whole] = state;
}

}  // namespace cortado::gated

extern "C" __global__ void __launch_bounds__(128, 2) gated_scan(const cortado::gated::GpuScan scan) {
  cortado::gated::Scan<KEYS, false>(scan).run();
}

extern "C" __global__ void __launch_bounds__(128, 2) gated_scan_reverse(const cortado::gated::GpuScan scan) {
  cortado::gated::Scan<KEYS, true>(scan).run();
}

extern "C" __global__ void __launch_bounds__(128, 3) gated_scan_states(const cortado::gated::GpuScan scan) {
  cortado::gated::Scan<KEYS, false, true>(scan).run();
}

extern "C" __global__ void __launch_bounds__(128, 3) gated_scan_states_reverse(const cortado::gated::GpuScan scan) {
  cortado::gated::Scan<KEYS, true, true>(scan).run();
}

extern "C" __global__ void __launch_bounds__(128) gated_scan_join(const cortado::gated::GpuJoin join) {
  cortado::gated::join_parts(join);
}
