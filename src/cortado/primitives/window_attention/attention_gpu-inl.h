// Window attention on a GPU; see kernel_gpu.h for the arguments and kernel.cu for the method.
#pragma once

#include "cortado/primitives/cuda/device.h"
#include "cortado/primitives/window_attention/kernel_gpu.h"

namespace cortado::window {

using namespace device;

// A row, one of its heads, and a tile of its queries or keys.
struct Place {
  int row, head, tile;
  long long first_query, first_key;
  int queries, keys;
  int there;                                         // the first valid key
  DEV int offset() const { return keys - queries; }  // the first query's position among the keys
};

DEV Place place_of(const GpuAttention& in) {
  Place at;
  at.tile = in.parts ? 0 : blockIdx.x;
  at.head = blockIdx.y;
  at.row = blockIdx.z;
  at.first_query = in.query_bounds ? in.query_bounds[at.row] : 0;
  at.first_key = in.key_bounds ? in.key_bounds[at.row] : 0;
  at.queries = in.query_bounds ? static_cast<int>(in.query_bounds[at.row + 1] - at.first_query) : in.queries;
  at.keys = in.key_bounds ? static_cast<int>(in.key_bounds[at.row + 1] - at.first_key) : in.keys;
  at.there = in.first_key ? static_cast<int>(in.first_key[at.row]) : 0;
  return at;
}

struct Span {
  int begin, end;
};
DEV int larger(int a, int b) { return a > b ? a : b; }
DEV int smaller(int a, int b) { return a < b ? a : b; }
DEV int tiles_of(int tokens) { return (tokens + kGpuTile - 1) / kGpuTile; }

// keys_of: the keys that query t sees. queries_of: the queries that see key s.
DEV Span keys_of(const GpuAttention& in, const Place& at, int t) {
  const int i = t + at.offset();
  const int begin = in.window ? larger(at.there, i - in.window + 1) : at.there;
  const int end = in.causal ? i + 1 : in.window ? i + in.window : at.keys;
  return {begin, smaller(larger(end, 0), at.keys)};
}
DEV Span queries_of(const GpuAttention& in, const Place& at, int s) {
  const int t = s - at.offset();
  const int begin = in.causal ? t : in.window ? t - in.window + 1 : 0;
  const int end = s < at.there ? 0 : in.window ? t + in.window : at.queries;
  return {larger(begin, 0), smaller(larger(end, 0), at.queries)};
}

template <typename T>
DEV T* head_of(const GpuTimed& x, const GpuAttention& in, const Place& at, long long first) {
  const int head = at.head / (in.heads / x.heads);
  return static_cast<T*>(x.data) + (in.query_bounds ? 0 : at.row) * x.batch + first * x.token + head * x.head;
}

template <int kWidth>
class Attention {
  static constexpr int kSteps = kWidth / 16, kTiles = kWidth / 8, kBytes = gpu_tile_bytes(kWidth);
  // With gradients: how many groups of eight columns of a tile are processed at once; more need too many registers.
  static constexpr int kPart = kWidth == 64 ? 4 : 2, kAtOnce = kWidth == 64 ? 4 : 2;
  using Rows = Tile<kWidth * 2>;

 public:
  DEV explicit Attention(const GpuAttention& in)
      : in_(in),
        at_(place_of(in)),
        thread_(CORTADO_THREAD),
        lane_(thread_ & 31),
        warp_(thread_ >> 5),
        begin_(at_.tile * kGpuTile) {
    base_ = shared_address(shared_memory());
  }

  // Computes o, lse, row_max and denominator of 64 queries.
  DEV void forward() {
    if (begin_ >= at_.queries) return;
    const Span all = span_of_queries();
    float o[kTiles][4] = {}, most[2] = {-infinity(), -infinity()}, sum[2] = {0, 0};
    add_keys(o, most, sum, all, all.begin / kGpuTile);
    UNROLL for (int half = 0; half < 2; ++half) {
      const float share = sum[half] > 0 ? 1 / sum[half] : 0.0f;
      UNROLL for (int j = 0; j < kTiles; ++j) {
        o[j][2 * half] *= share;
        o[j][2 * half + 1] *= share;
      }
      write_sums(half, most[half], sum[half]);
    }
    write(o, in_.o, at_.first_query, at_.queries, in_.value_size);
  }

  // Computes the contribution of one part of the keys' tiles to the row's queries, which are at most one tile.
  DEV void forward_part() {
    const Span all = span_of_queries();
    const int part = blockIdx.x, first = all.begin / kGpuTile, tiles = larger(tiles_of(all.end) - first, 0);
    const int begin = first + tiles * part / in_.parts, end = first + tiles * (part + 1) / in_.parts;
    float o[kTiles][4] = {}, most[2] = {-infinity(), -infinity()}, sum[2] = {0, 0};
    add_keys(o, most, sum, {all.begin, smaller(all.end, end * kGpuTile)}, begin);
    const long long before = static_cast<long long>(part) * in_.rows * in_.queries * in_.heads;
    UNROLL for (int half = 0; half < 2; ++half) {
      if (row(half) >= at_.queries) continue;
      const long long place = before + number(row(half));
      if ((lane_ & 3) == 0) {
        in_.part_max[place] = most[half];
        in_.part_sum[place] = sum[half];
      }
      UNROLL for (int j = 0; j < kTiles; ++j) {
        const int column = j * 8 + (lane_ & 3) * 2;  // widths are multiples of 8
        if (column >= in_.value_size) continue;
        float* to = in_.part_o + place * in_.value_size + column;
        to[0] = o[j][2 * half];
        to[1] = o[j][2 * half + 1];
      }
    }
  }

  // Computes dq of 64 queries: dS = P (do v^T - delta), dq = scale dS k.
  DEV void gradient_of_queries() {
    if (begin_ >= at_.queries) return;
    const Pair pair = keys_and_values(), own = queries_and_gradients();
    const Span all = span_of_queries();
    fetch(tile(0), own.a, own.a_stride, begin_, own.end, own.a_width);
    fetch(tile(1), own.b, own.b_stride, begin_, own.end, own.b_width);
    const int first = all.begin / kGpuTile;
    fetch_pair(pair, all, first, 2);
    Span seen[2];
    float log_sum[2], delta[2];
    for (int half = 0; half < 2; ++half) {
      seen[half] = keys_of(in_, at_, row(half));
      const bool there = row(half) < at_.queries;
      log_sum[half] = there ? in_.lse[number(row(half))] * kLog2e : 0.0f;
      delta[half] = there ? in_.delta[number(row(half))] : 0.0f;
    }
    float dq[kTiles][4] = {};
    for (int n = first; n * kGpuTile < all.end; ++n) {
      wait_for_groups<0>();
      __syncthreads();
      fetch_pair(pair, all, n + 1, 2);
      const int stage = 2 + (n & 1) * 2;
      UNROLL_BY(1) for (int part = 0; part < 8; part += kPart) {
        float s[kPart][4] = {}, dp[kPart][4] = {};
        products<kPart>(s, tile(0), warp_ * 16, tile(stage), part * 8);
        products<kPart>(dp, tile(1), warp_ * 16, tile(stage + 1), part * 8);
        UNROLL for (int j = 0; j < kPart; ++j) {
          UNROLL for (int x = 0; x < 4; ++x) {
            const int half = x / 2, key = n * kGpuTile + part * 8 + j * 8 + (lane_ & 3) * 2 + x % 2;
            const bool sees = key >= seen[half].begin && key < seen[half].end;
            const float p = sees ? power(s[j][x] * in_.scale * kLog2e - log_sum[half]) : 0.0f;
            s[j][x] = p * (dp[j][x] - delta[half]);
          }
        }
        add_products<kPart>(dq, s, tile(stage), part * 8);
      }
    }
    wait_for_groups<0>();
    scale_and_write(dq, in_.grad_q, at_.first_query, at_.queries, in_.key_size);
  }

  // Computes dk and dv of 64 keys, with P and dS transposed: dv = P^T do, dk = scale dS^T q.
  DEV void gradient_of_keys() {
    if (begin_ >= at_.keys) return;
    const Pair pair = queries_and_gradients(), own = keys_and_values();
    const int last = smaller(begin_ + kGpuTile, at_.keys) - 1;
    const Span all = {queries_of(in_, at_, begin_).begin, queries_of(in_, at_, last).end};
    fetch(tile(0), own.a, own.a_stride, begin_, own.end, own.a_width);
    fetch(tile(1), own.b, own.b_stride, begin_, own.end, own.b_width);
    const int first = all.begin / kGpuTile;
    fetch_numbers(all, first);
    fetch_pair(pair, all, first, 2);
    Span seen[2];
    for (int half = 0; half < 2; ++half) {
      seen[half] = row(half) < at_.keys ? queries_of(in_, at_, row(half)) : Span{0, 0};
    }
    float dk[kTiles][4] = {}, dv[kTiles][4] = {};
    for (int n = first; n * kGpuTile < all.end; ++n) {
      wait_for_groups<0>();
      __syncthreads();
      fetch_numbers(all, n + 1);
      fetch_pair(pair, all, n + 1, 2);
      const int stage = 2 + (n & 1) * 2;
      const float* log_sums = numbers(n);
      UNROLL_BY(1) for (int part = 0; part < 8; part += kPart) {
        float p[kPart][4] = {}, ds[kPart][4] = {};
        products<kPart>(p, tile(0), warp_ * 16, tile(stage), part * 8);
        products<kPart>(ds, tile(1), warp_ * 16, tile(stage + 1), part * 8);
        UNROLL for (int j = 0; j < kPart; ++j) {
          UNROLL for (int x = 0; x < 4; ++x) {
            const int half = x / 2, column = part * 8 + j * 8 + (lane_ & 3) * 2 + x % 2, query = n * kGpuTile + column;
            const bool sees = query >= seen[half].begin && query < seen[half].end;
            p[j][x] = sees ? power(p[j][x] * in_.scale * kLog2e - log_sums[column] * kLog2e) : 0.0f;
            ds[j][x] = p[j][x] * (ds[j][x] - log_sums[64 + column]);
          }
        }
        add_products<kPart>(dv, p, tile(stage + 1), part * 8);
        add_products<kPart>(dk, ds, tile(stage), part * 8);
      }
    }
    wait_for_groups<0>();
    scale_and_write(dk, in_.grad_k, at_.first_key, at_.keys, in_.key_size);
    write(dv, in_.grad_v, at_.first_key, at_.keys, in_.value_size);
  }

 private:
  // Adds the tiles of keys from `first` to the span's end to o, which is not yet divided by the sum.
  DEV void add_keys(float (*o)[4], float* most, float* sum, const Span& all, int first) const {
    const Pair pair = keys_and_values();
    fetch(tile(0), head_of<const u16>(in_.q, in_, at_, at_.first_query), in_.q.token, begin_, at_.queries,
          in_.key_size);
    fetch_pair(pair, all, first, 1);
    Span seen[2];
    for (int half = 0; half < 2; ++half) seen[half] = keys_of(in_, at_, row(half));
    for (int n = first; n * kGpuTile < all.end; ++n) {
      wait_for_groups<0>();
      __syncthreads();
      fetch_pair(pair, all, n + 1, 1);
      const int stage = 1 + (n & 1) * 2;
      float s[8][4] = {};
      products(s, tile(0), warp_ * 16, tile(stage), 0);
      softmax_step(s, o, most, sum, seen, n * kGpuTile);
      add_products(o, s, tile(stage + 1), 0);
    }
    wait_for_groups<0>();
    UNROLL for (int half = 0; half < 2; ++half) {
      UNROLL for (int d = 1; d < 4; d <<= 1) sum[half] += __shfl_xor_sync(~0u, sum[half], d);
    }
  }

  DEV Rows tile(int i) const { return {base_ + i * kBytes}; }
  DEV float* numbers(int n) const {
    return reinterpret_cast<float*>(shared_memory() + 6 * kBytes) + (n & 1) * 2 * kGpuTile;
  }
  DEV int row(int half) const { return begin_ + warp_ * 16 + (lane_ >> 2) + 8 * half; }
  DEV long long number(int t) const {
    return ((in_.query_bounds ? 0 : static_cast<long long>(at_.row)) * in_.queries + at_.first_query + t) * in_.heads +
           at_.head;
  }

  DEV Span span_of_queries() const {
    const int last = smaller(begin_ + kGpuTile, at_.queries) - 1;
    return {keys_of(in_, at_, begin_).begin, keys_of(in_, at_, last).end};
  }

  // Two tensors of the same tokens.
  struct Pair {
    const u16 *a, *b;
    int a_stride, b_stride, a_width, b_width, end;
  };
  DEV Pair keys_and_values() const {
    return {head_of<const u16>(in_.k, in_, at_, at_.first_key),
            head_of<const u16>(in_.v, in_, at_, at_.first_key),
            in_.k.token,
            in_.v.token,
            in_.key_size,
            in_.value_size,
            at_.keys};
  }
  DEV Pair queries_and_gradients() const {
    return {head_of<const u16>(in_.q, in_, at_, at_.first_query),
            head_of<const u16>(in_.grad_o, in_, at_, at_.first_query),
            in_.q.token,
            in_.grad_o.token,
            in_.key_size,
            in_.value_size,
            at_.queries};
  }

  // Fetches tile n of both, if it exists, into one of the two stages from tile `stages` on; ends the copy group.
  DEV void fetch_pair(const Pair& pair, const Span& all, int n, int stages) const {
    if (n * kGpuTile < all.end) {
      const int stage = stages + (n & 1) * 2;
      fetch(tile(stage), pair.a, pair.a_stride, n * kGpuTile, pair.end, pair.a_width);
      fetch(tile(stage + 1), pair.b, pair.b_stride, n * kGpuTile, pair.end, pair.b_width);
    }
    end_group();
  }

  // Fetches lse and delta of the queries of tile n.
  DEV void fetch_numbers(const Span& all, int n) const {
    if (n * kGpuTile >= all.end) return;
    const int t = n * kGpuTile + (thread_ & 63);
    const float* from = thread_ < 64 ? in_.lse : in_.delta;
    copy4(shared_address(numbers(n) + thread_), t < at_.queries ? from + number(t) : from, t < at_.queries ? 4 : 0);
  }

  // Fetches rows first .. first + 64 of a tensor, 0 from `end` on.
  DEV void fetch(Rows to, const u16* from, int stride, int first, int end, int width) const {
    constexpr int kPieces = kWidth / 8;
    UNROLL for (int i = 0; i < kGpuTile * kPieces / kGpuAttentionThreads; ++i) {
      const int place = thread_ + i * kGpuAttentionThreads, r = place / kPieces, piece = place % kPieces;
      const bool there = first + r < end && piece * 8 < width;
      copy16(to.at(r, piece), there ? from + times(first + r, stride) + piece * 8 : from, there ? 16 : 0);
    }
  }

  // sums += 16 rows of a tile times kColumns x 8 rows of another, over the width.
  template <int kColumns = 8>
  DEV void products(float (*sums)[4], Rows rows, int r0, Rows columns, int c0) const {
    UNROLL_BY(kAtOnce) for (int i = 0; i < kSteps; ++i) {
      u32 a[4];
      left(a, rows, lane_, r0, i);
      UNROLL for (int pair = 0; pair < kColumns / 2; ++pair) {
        u32 b[4];
        right_transposed(b, columns, lane_, c0 + pair * 16, i);
        multiply(sums[2 * pair], a, b[0], b[1]);
        multiply(sums[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }

  // out += weights [16, kColumns x 8] times as many rows of a tile.
  template <int kColumns = 8>
  DEV void add_products(float (*out)[4], const float (*weights)[4], Rows rows, int r0) const {
    UNROLL for (int i = 0; i < kColumns / 2; ++i) {
      const float *x = weights[2 * i], *y = weights[2 * i + 1];
      const u32 a[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(y[0], y[1]), pack(y[2], y[3])};
      UNROLL for (int pair = 0; pair < kTiles / 2; ++pair) {
        u32 b[4];
        right(b, rows, lane_, r0 + i * 16, pair);
        multiply(out[2 * pair], a, b[0], b[1]);
        multiply(out[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }

  // Turns scores into weights relative to a maximum that may rise; rescales o and the sums to it.
  DEV void softmax_step(float (*s)[4], float (*o)[4], float* most, float* sum, const Span* seen, int first_key) const {
    UNROLL for (int half = 0; half < 2; ++half) {
      float largest = most[half];
      UNROLL for (int j = 0; j < 8; ++j) {
        UNROLL for (int x = 0; x < 2; ++x) {
          const int key = first_key + j * 8 + (lane_ & 3) * 2 + x;
          float& score = s[j][2 * half + x];
          score = key >= seen[half].begin && key < seen[half].end ? score * in_.scale * kLog2e : -infinity();
          largest = score > largest ? score : largest;
        }
      }
      UNROLL for (int d = 1; d < 4; d <<= 1) {
        const float other = __shfl_xor_sync(~0u, largest, d);
        largest = other > largest ? other : largest;
      }
      const float to = largest == -infinity() ? 0.0f : largest, factor = power(most[half] - to);
      most[half] = largest;
      sum[half] *= factor;
      UNROLL for (int j = 0; j < kTiles; ++j) {
        o[j][2 * half] *= factor;
        o[j][2 * half + 1] *= factor;
      }
      UNROLL for (int j = 0; j < 8; ++j) {
        UNROLL for (int x = 0; x < 2; ++x) sum[half] += s[j][2 * half + x] = power(s[j][2 * half + x] - to);
      }
    }
  }

  DEV void write_sums(int half, float most, float sum) const {
    if ((lane_ & 3) || row(half) >= at_.queries) return;
    const long long place = number(row(half));
    const float row_max = most * kLn2;
    in_.row_max[place] = row_max;
    in_.denominator[place] = sum > 0 ? sum : 1.0f;
    in_.lse[place] = sum > 0 ? row_max + logarithm(sum) * kLn2 : -infinity();
  }

  DEV void scale_and_write(float (*x)[4], const GpuTimed& to, long long first, int end, int width) const {
    UNROLL for (int j = 0; j < kTiles; ++j) { UNROLL for (int y = 0; y < 4; ++y) x[j][y] *= in_.scale; }
    write(x, to, first, end, width);
  }

  // Writes eight numbers of a row at once, as the gated scan's walk does.
  DEV void write(const float (*x)[4], const GpuTimed& to, long long first, int end, int width) const {
    u16* numbers = head_of<u16>(to, in_, at_, first);
    UNROLL for (int group = 0; group < kTiles / 4; ++group) {
      UNROLL for (int half = 0; half < 2; ++half) {
        u32 both[4];
        UNROLL for (int j = 0; j < 4; ++j) both[j] = pack(x[group * 4 + j][2 * half], x[group * 4 + j][2 * half + 1]);
        exchange(both, lane_);
        const int from = group * 32 + (lane_ & 3) * 8;
        if (row(half) >= end || from >= width) continue;
        *reinterpret_cast<Four*>(numbers + times(row(half), to.token) + from) = {both[0], both[1], both[2], both[3]};
      }
    }
  }

  const GpuAttention& in_;
  const Place at_;
  const int thread_, lane_, warp_;
  const int begin_;  // the tile's first query, or key
  u32 base_;
};

}  // namespace cortado::window
