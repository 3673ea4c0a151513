// A block's walk through one head's tokens, for any kind of gates: fetches inputs, holds the state, stores the results.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/gated_scan/kernel_gpu.h"

namespace cortado::gated {

using namespace device;

// One stage of inputs.
template <int kKeys>
struct Stage {
  Tile<kKeys * 2> q, k;
  Tile<kGpuPiece * 2> v;
};

// The tokens and numbers of a block.
struct Place {
  int row, head, piece, pieces, part;
  long long first;  // first token of the row
  int tokens;       // of the row
  int chunks;       // of the row
  int begin, end;   // chunks of the part, in the scan's order
  long long state;  // index of its state
};

DEV Place place_of(const GpuScan& scan, int piece = kGpuPiece) {
  Place place;
  place.pieces = (scan.values + piece - 1) / piece;
  int rest = blockIdx.x;
  place.piece = rest % place.pieces;
  rest /= place.pieces;
  place.head = rest % scan.heads;
  place.row = rest / scan.heads;
  place.part = blockIdx.y;
  place.first = scan.bounds ? scan.bounds[place.row] : 0;
  place.tokens = scan.bounds ? static_cast<int>(scan.bounds[place.row + 1] - place.first) : scan.tokens;
  place.chunks = (place.tokens + kGpuChunk - 1) / kGpuChunk;
  const int wanted = (place.tokens + scan.part_tokens - 1) / scan.part_tokens;
  const int parts = wanted < scan.parts ? (wanted > 1 ? wanted : 1) : scan.parts;
  const int each = (place.chunks + parts - 1) / parts;
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

template <int kKeys, bool kReverse, bool kReads>
class Walk {
 protected:
  static constexpr int kRows = kKeys / 64;  // of 16 keys, that a warp has of the state

  DEV Walk(const GpuScan& scan, unsigned char* states)
      : scan_(scan),
        at_(place_of(scan)),
        thread_(CORTADO_THREAD % kGpuThreads),
        lane_(thread_ & 31),
        warp_((thread_ >> 5) & 3),
        side_(thread_ >> 7),
        states_(states) {
    q_ = start<kKeys>(scan.q, 0);
    k_ = start<kKeys>(scan.k, 0);
    v_ = start<kGpuPiece>(scan.v, at_.piece * kGpuPiece);
    o_ = head_of<u16>(scan.o, scan, at_, eight());
  }

  // The chunk, or token, at place c or p of the walk; places before the last token's are empty.
  DEV int chunk(int c) const { return kReverse ? at_.chunks - 1 - c : c; }
  DEV int token(int c, int r) const { return kReverse ? chunk(c) * kGpuChunk + kGpuChunk - 1 - r : c * kGpuChunk + r; }

  // Start of this thread's first row of the next chunk to be fetched.
  template <int kWidth>
  DEV const u16* start(const GpuTimed& x, int from) const {
    constexpr int kPieces = kWidth / 8;
    const int t = token(at_.begin, thread_ / kPieces);
    return head_of<const u16>(x, scan_, at_, from) + times(t, x.token) + thread_ % kPieces * 8;
  }

  DEV void fetch_inputs(const Stage<kKeys>& to, int c) {
    if constexpr (kReads) fetch_rows<kKeys>(to.q, q_, scan_.q, scan_.keys, c);
    fetch_rows<kKeys>(to.k, k_, scan_.k, scan_.keys, c);
    fetch_rows<kGpuPiece>(to.v, v_, scan_.v, scan_.values - at_.piece * kGpuPiece, c);
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

  // This lane's numbers of the state: rows r and r + 8, columns c and c + 1.
  DEV int key_of(int i) const { return (warp_ * kRows + i) * 16 + (lane_ >> 2); }
  DEV int value_of(int j) const { return at_.piece * kGpuPiece + side_ * 32 + j * 8 + (lane_ & 3) * 2; }

  // Calls work for each number of the state that exists, with its place in [K, V] of a row and head.
  template <typename Work>
  DEV void each(const Work& work) {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) {
        UNROLL for (int x = 0; x < 4; ++x) {
          const int r = key_of(i) + x / 2 * 8, c = value_of(j) + x % 2;
          if (r < scan_.keys && c < scan_.values)
            work(state_[i][j][x], (at_.state * scan_.keys + r) * scan_.values + c);
        }
      }
    }
  }

  DEV void load_state() {
    UNROLL for (int i = 0; i < kRows; ++i) {
      UNROLL for (int j = 0; j < 4; ++j) { UNROLL for (int x = 0; x < 4; ++x) state_[i][j][x] = 0; }
    }
    const float* initial = scan_.initial;
    const float factor = scan_.initial_factor;
    if (initial) each([=](float& number, long long place) { number = initial[place] * factor; });
  }
  DEV void begin() {
    load_state();
    if constexpr (kReads) write_state(at_.begin);
  }

  DEV void end() {
    float* last = scan_.last;
    const float factor = scan_.last_factor;
    if (last) each([=](float& number, long long place) { last[place] = number * factor; });
  }

  DEV Tile<kGpuPiece * 2> state_tile(int c) const {
    return {shared_address(states_) + (c & 1) * kKeys * kGpuPiece * 2};
  }

  // Writes the state in 16 bits, for all warps to read in chunk c.
  DEV void write_state(int c) const {
    const Tile<kGpuPiece * 2> tile = {static_cast<u32>((c & 1) * kKeys * kGpuPiece * 2)};
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

  // Adds to o the contribution of the i-th 16 keys of the state before chunk c.
  DEV void multiply_state(float (*o)[4], const u32* rows, int i, int c) const {
    UNROLL for (int pair = 0; pair < 2; ++pair) {
      u32 s[4];
      right(s, state_tile(c), lane_, i * 16, side_ * 2 + pair);
      multiply(o[2 * pair], rows, s[0], s[1]);
      multiply(o[2 * pair + 1], rows, s[2], s[3]);
    }
  }
  // a += q k^T for 16 tokens and the chunk's keys-th 16 tokens.
  DEV void multiply_keys(float (*a)[4], const u32 (*q)[4], Tile<kKeys * 2> k, int keys) const {
    UNROLL for (int i = 0; i < kKeys / 16; ++i) {
      u32 columns[4];
      right_transposed(columns, k, lane_, keys * 16, i);
      multiply(a[0], q[i], columns[0], columns[1]);
      multiply(a[1], q[i], columns[2], columns[3]);
    }
  }
  // o += weights v, with the values of the chunk's keys-th 16 tokens.
  DEV void multiply_values(float (*o)[4], const u32* weights, Tile<kGpuPiece * 2> values, int keys) const {
    UNROLL for (int pair = 0; pair < 2; ++pair) {
      u32 v[4];
      right(v, values, lane_, keys * 16, side_ * 2 + pair);
      multiply(o[2 * pair], weights, v[0], v[1]);
      multiply(o[2 * pair + 1], weights, v[2], v[3]);
    }
  }

  // Eight values of a token are contiguous in memory. Lane l % 4 writes the l % 4-th eight; it gets them by exchanging
  // the two of each eight that products leave in a lane.
  DEV int eight() const { return at_.piece * kGpuPiece + side_ * 32 + (lane_ & 3) * 8; }

  // Call once before write().
  DEV void find_output() {
    if (scan_.wide) o_ = reinterpret_cast<u16*>(head_of<float>(scan_.o, scan_, at_, value_of(0)));
  }
  DEV void write(const float (*o)[4], int tile, int c) const {
    if (scan_.wide) return write_wide(o, tile, c);
    write_to(o_, scan_.o.token, o, tile, c);
  }
  DEV void write_wide(const float (*o)[4], int tile, int c) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      const int t = token(c, tile * 16 + (lane_ >> 2) + 8 * half);
      float* to = reinterpret_cast<float*>(o_) + times(t, scan_.o.token);
      UNROLL for (int j = 0; j < 4; ++j) {
        const bool there = t < at_.tokens && value_of(j) < scan_.values;
        if (there) *reinterpret_cast<Two*>(to + j * 8) = {o[j][2 * half], o[j][2 * half + 1]};
      }
    }
  }
  DEV void write_to(u16* to, int stride, const float (*o)[4], int tile, int c) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      u32 both[4];
      UNROLL for (int j = 0; j < 4; ++j) both[j] = pack(o[j][2 * half], o[j][2 * half + 1]);
      exchange(both, lane_);
      const int t = token(c, tile * 16 + (lane_ >> 2) + 8 * half);
      if (t >= at_.tokens || eight() >= scan_.values) continue;
      *reinterpret_cast<Four*>(to + times(t, stride)) = {both[0], both[1], both[2], both[3]};
    }
  }

  // Where the state at this segment's end is stored, in the threads' layout.
  DEV long long crossing(int c) const {
    const long long segment = gpu_first_segment(at_.row, at_.first, scan_.tokens, scan_.bounds != nullptr) +
                              chunk(c) / (kGpuSegment / kGpuChunk);
    return (segment * scan_.heads + at_.head) * at_.pieces + at_.piece;
  }
  // Whether chunk c is the first of a segment in the walk's order, or the last.
  DEV bool at_edge(int c, bool front) const {
    const int number = chunk(c), each = kGpuSegment / kGpuChunk;
    return front ? number % each == 0 : number % each == each - 1 || number == at_.chunks - 1;
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

  const GpuScan& scan_;
  const Place at_;
  const int thread_, lane_, warp_, side_;  // side_: which half of the piece's 64 values
  unsigned char* const states_;            // 16-bit copies
  const u16 *q_, *k_, *v_;                 // start of this thread's first row of the next chunk to fetch
  u16* o_;
  float state_[kRows][4][4];
};

}  // namespace cortado::gated
