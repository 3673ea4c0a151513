// A tile of 16 tokens of the delta scan: the gated scan's tile, with values from a triangular system. Part of
// kernel.cpp, compiled once per instruction set (hence the unusual guard).
#if defined(CORTADO_DELTA_SCAN_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_DELTA_SCAN_TILE_INL_H
#undef CORTADO_DELTA_SCAN_TILE_INL_H
#else
#define CORTADO_DELTA_SCAN_TILE_INL_H
#endif

#include "cortado/primitives/delta_scan/kernel.h"
#include "cortado/primitives/gated_scan/step-inl.h"
#include "cortado/primitives/gated_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;
using namespace gated::HWY_NAMESPACE;

inline Job laid_out(const ScanKernel& in, int64_t values, Fetcher& fetcher, Scratch& scratch) {
  Job job{{.keys = round_up(in.keys, 16), .values = values, .fetcher = &fetcher}, in};
  lay_out(job, scratch);
  job.y = scratch.take(2 * kTokens * job.keys);
  job.entering = job.gated() ? scratch.take(2 * kTokens * job.keys) : job.y;
  job.w = scratch.take(2 * kTokens * job.values);
  job.scores = scratch.take(2 * kTokens * kTokens);
  set_constants(job);
  return job;
}

// Two reads of one state: by q with weights ∂L/∂o, and by -k, before the token's own write, with weights ∂L/∂v.
struct Tile {
  const ScanKernel& in;
  Job stored;     // stored.v is u
  Job held;       // second read: y, entering, w and scores lie after the first's, m and dy are its own
  float* beta;    // [16]
  float* errors;  // v - S'ᵀk; u = beta times this
  // For all tiles from number `first` on. In a backward: errors [tiles, 16, values], and held.scores [tiles, 16, 16].
  // If time is split: also in a forward, and in a backward the first read's scores, too.
  float *all_errors = nullptr, *all_scores = nullptr, *all_pairs = nullptr;
  int64_t first = 0;

  Tile(const ScanKernel& scan, int64_t values, Fetcher& fetcher, Scratch& scratch)
      : in(scan), stored(laid_out(scan, values, fetcher, scratch)), held(stored) {
    const int64_t key_tile = kTokens * held.keys, value_tile = kTokens * values, pairs = kTokens * kTokens;
    held.y += key_tile;
    held.entering += key_tile;
    held.w += value_tile;
    held.scores += pairs;
    beta = scratch.take(kTokens);
    errors = scratch.take(value_tile);
    if (!stored.backward()) return;
    const int64_t tiles = (scan.tokens + kTokens - 1) / kTokens;
    all_errors = scratch.take(tiles * value_tile);
    all_scores = scratch.take(tiles * pairs);
    held.m = scratch.take(pairs);
    held.dy = scratch.take(key_tile);
    held.w_lanes = scratch.take(value_tile);
  }
};

// Reads beta, and k, which is negated to serve as a query.
inline void read_held(const Tile& tile, const Stretch& at) {
  const Floats d;
  const Job& job = tile.held;
  read_numbers(tile.in.beta, at, tile.beta);
  for (int64_t i = 0; i < kTokens * job.keys; i += kLanes) hn::Store(hn::Neg(hn::Load(d, job.x + i)), d, job.y + i);
  if (!job.gated()) return;
  if (!job.by_channel()) return times_rows(job.y, job.enter, job.keys, job.entering);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec decay = hn::Set(d, 1.0f);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      decay = hn::Mul(decay, hn::Load(d, job.a + i));
      hn::Store(hn::Mul(decay, hn::Load(d, job.y + i)), d, job.entering + i);
    }
  }
}

// A unit lower triangular system with many right-hand sides: z_i += Σ_{j < i} a_ij w_j, w_i = beta_i z_i, i = 0 ... 15.
// Negative strides traverse rows backwards.
struct System {
  const float* a;  // a_ij at i·a_row + j·a_column
  int64_t a_row, a_column;
  const float* beta;
  int64_t beta_row;
  float *z, *w;
  int64_t row, columns;
};

// kVecs vectors of columns from column j on, four rows at a time: first the contribution of the rows above, then the
// four rows among themselves.
template <int kVecs>
HWY_INLINE void solve_columns(const System& s, int64_t j) {
  const Floats d;
  constexpr int kRows = 4;
  for (int64_t i = 0; i < kTokens; i += kRows) {
    const float* a = s.a + i * s.a_row;
    float* z = s.z + i * s.row + j;
    Vec sum[kRows][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = hn::Load(d, z + r * s.row + c * kLanes);
    }
    const float* w = s.w + j;
    for (int64_t above = 0; above < i; ++above, w += s.row, a += s.a_column) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec factor = hn::Set(d, a[r * s.a_row]);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) sum[r][c] = hn::MulAdd(factor, hn::Load(d, w + c * kLanes), sum[r][c]);
      }
    }
    float* to = s.w + i * s.row + j;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec beta = hn::Set(d, s.beta[(i + r) * s.beta_row]);
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) {
        const Vec found = hn::Mul(beta, sum[r][c]);
        hn::Store(sum[r][c], d, z + r * s.row + c * kLanes);
        hn::Store(found, d, to + r * s.row + c * kLanes);
#pragma GCC unroll 4
        for (int below = r + 1; below < kRows; ++below) {
          sum[below][c] = hn::MulAdd(hn::Set(d, a[below * s.a_row + r * s.a_column]), found, sum[below][c]);
        }
      }
    }
  }
}

HWY_NOINLINE inline void solve(const System& s) {
  constexpr int kVecs = kTileRows / 2;  // as registers allow
  int64_t j = 0;
  for (; j + kVecs * kLanes <= s.columns; j += kVecs * kLanes) solve_columns<kVecs>(s, j);
  for (; j < s.columns; j += kLanes) solve_columns<1>(s, j);
}

// Computes errors = v - S'ᵀk and stored.v = beta · errors, which replaces v. held.scores and v_rows must be ready.
inline void find_corrections(const Tile& tile, const float* state) {
  const Job& job = tile.held;
  read_by_keys(job, job.entering, state, tile.stored.v_rows, tile.errors, job.values);
  solve({.a = job.scores,
         .a_row = kTokens,
         .a_column = 1,
         .beta = tile.beta,
         .beta_row = 1,
         .z = tile.errors,
         .w = tile.stored.v,
         .row = job.values,
         .columns = job.values});
}

// Computes the gradients of the errors, in stored.dv, and of v, beta times them, in held.w, by solving the system from
// its other end: each gradient loses what later tokens subtract through u.
inline void solve_back(const Tile& tile) {
  const Job& job = tile.stored;
  value_gradients(job);
  const int64_t last = kTokens - 1;
  solve({.a = tile.held.scores + last * kTokens + last,
         .a_row = -1,
         .a_column = -kTokens,
         .beta = tile.beta + last,
         .beta_row = -1,
         .z = job.dv + last * job.values,
         .w = tile.held.w + last * job.values,
         .row = -job.values,
         .columns = job.values});
}

// dbeta_t = ∂L/∂errors_t · errors_t
inline void write_beta_gradient(const Tile& tile, const Stretch& at) {
  const Job& job = tile.stored;
  for (int64_t t = 0; t < kTokens; ++t) {
    job.parts[t] = inner_product(job.dv + t * job.values, tile.errors + t * job.values, job.values);
  }
  write_numbers(job.parts, tile.in.dbeta, at);
}

// m of both reads; the second read comes before the token's own write.
inline void weigh_both(const Tile& tile) {
  const Job& held = tile.held;
  weigh_pairs(tile.stored);
  to_token_lanes(held.w, held.values, held.w_lanes, held.spare);
  pair_products(held, held.w, held.v_lanes, held.values, held.m);
  for (int64_t t = 0; t < kTokens; ++t) held.m[t * kTokens + t] = 0;
}

// The pair gradients of both reads with one gate per channel, in one pass over keys and decays; see pair_gradients.
template <bool kGate>
HWY_NOINLINE void channel_gradients_of_both(const Tile& tile) {
  const Floats d;
  const Job &job = tile.stored, &held = tile.held;
  const int64_t width = job.keys;
  for (int64_t k = 0; k < width; k += kLanes) {
    for (int64_t t = 0; t < kTokens; ++t) {
      job.fetcher->fetch(1);
      const int64_t own = t * width + k;
      const float *m = job.m + t * kTokens, *held_m = held.m + t * kTokens;
      const Vec y = hn::Load(d, job.y + own), held_y = hn::Load(d, held.y + own), self = hn::Set(d, m[t]);
      hn::Store(hn::MulAdd(self, y, hn::Load(d, job.dx + own)), d, job.dx + own);
      Vec decay = hn::Load(d, job.a + own);
      Vec sum = hn::MulAdd(self, hn::Load(d, job.x + own), hn::Load(d, job.dy + own));
      Vec held_sum = hn::Load(d, held.dy + own);
      for (int64_t s = t - 1; s >= 0; --s) {
        const int64_t i = s * width + k;
        const Vec weight = hn::Set(d, m[s]), held_weight = hn::Set(d, held_m[s]);
        const Vec x = hn::Mul(decay, hn::Load(d, job.x + i));
        const Vec reads = hn::MulAdd(weight, y, hn::Mul(held_weight, held_y));
        sum = hn::MulAdd(weight, x, sum);
        held_sum = hn::MulAdd(held_weight, x, held_sum);
        hn::Store(hn::MulAdd(decay, reads, hn::Load(d, job.dx + i)), d, job.dx + i);
        if (kGate) hn::Store(hn::Mul(x, reads), d, job.parts + s * kLanes);
        decay = hn::Mul(decay, hn::Load(d, job.a + i));
      }
      hn::Store(sum, d, job.dy + own);
      hn::Store(held_sum, d, held.dy + own);
      Vec upto = hn::Zero(d);
      for (int64_t s = 0; kGate && s < t; ++s) {
        upto = hn::Add(upto, hn::Load(d, job.parts + s * kLanes));
        float* dg = job.dg + (s + 1) * width + k;
        hn::Store(hn::Add(upto, hn::Load(d, dg)), d, dg);
      }
    }
  }
}

template <bool kGate>
void pair_gradients_of_both(const Tile& tile) {
  if (tile.stored.by_channel()) return channel_gradients_of_both<kGate>(tile);
  pair_gradients<true, kGate>(tile.stored);
  pair_gradients<true, kGate>(tile.held);
}

// The second read's part of gate_flow.
inline void add_gate_flow(const Job& job) {
  const Floats d;
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec sum = hn::Zero(d);
    for (int64_t i = (kTokens - 1) * job.keys + k; i >= 0; i -= job.keys) {
      sum = hn::MulAdd(hn::Load(d, job.y + i), hn::Load(d, job.dy + i), sum);
      hn::Store(hn::Add(sum, hn::Load(d, job.dg + i)), d, job.dg + i);
    }
  }
}

// k is written to the state and, negated, is a query.
inline void write_key_gradient(const Tile& tile, const Stretch& at) {
  const Floats d;
  const Job& job = tile.held;
  for (int64_t i = 0; i < kTokens * job.keys; i += kLanes) {
    hn::Store(hn::Sub(hn::Load(d, job.dx + i), hn::Load(d, job.dy + i)), d, job.dx + i);
  }
  write_tile(job.dx, job.keys, job.in.dx, at, 0, job.in.keys);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::delta
HWY_AFTER_NAMESPACE();

#endif
