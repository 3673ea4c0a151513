// A tile of 16 tokens of the delta scan: the gated scan's tile, with values that a triangular system gives.
// Part of kernel.cpp, compiled once for each instruction set (hence the unusual guard).
#if defined(CORTADO_DELTA_SCAN_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_DELTA_SCAN_TILE_INL_H
#undef CORTADO_DELTA_SCAN_TILE_INL_H
#else
#define CORTADO_DELTA_SCAN_TILE_INL_H
#endif

#include "cortado/primitives/delta_scan/kernel.h"
#include "cortado/primitives/gated_scan/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::delta {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;
using namespace gated::HWY_NAMESPACE;
using gated::Jobs;

// Two reads of one state: by q, and by -k before the own token is written, whose weights are ∂L/∂v.
struct Tile {
  const ScanKernel& in;
  Job stored, held;         // the second has its own y, entering, scores, m, dy and w, each behind the first's
  float* beta = nullptr;    // [16, kLanes], each beta in all lanes
  float* errors = nullptr;  // v - S'ᵀk; stored.v is u = beta times them

  Tile(const ScanKernel& scan, int64_t values)
      : in(scan),
        stored{.in = scan, .keys = round_up(scan.keys, 16), .values = values},
        held{.in = scan, .keys = stored.keys, .values = values} {}
};

inline void lay_out(Tile& tile, Scratch& scratch) {
  Job& job = tile.stored;
  Job& held = tile.held;
  const int64_t key_tile = kTokens * job.keys, value_tile = kTokens * job.values, pairs = kTokens * kTokens;
  gated::HWY_NAMESPACE::lay_out(job, scratch);
  job.y = scratch.take(2 * key_tile);
  job.entering = job.gated() ? scratch.take(2 * key_tile) : job.y;
  job.w = scratch.take(2 * value_tile);
  job.scores = scratch.take(2 * pairs);
  tile.beta = scratch.take(kTokens * kLanes);
  tile.errors = scratch.take(value_tile);
  set_constants(job);
  held.fetcher = job.fetcher;
  held.x = held.self = job.x;
  held.a = job.a;
  held.decays = job.decays;
  held.y = job.y + key_tile;
  held.entering = job.entering + key_tile;
  held.w = job.w + value_tile;
  held.scores = job.scores + pairs;
}

// beta, and -k as a query.
inline void read_held(const Tile& tile, const Stretch& at) {
  const Floats d;
  const Job& job = tile.held;
  read_tile(tile.in.beta, at, 0, 1, 1, tile.beta, kLanes);
  for (int64_t t = 0; t < kTokens; ++t) fill(tile.beta + t * kLanes, kLanes, tile.beta[t * kLanes]);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec decay = hn::Set(d, -1.0f);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      const Vec x = hn::Load(d, job.x + i);
      if (job.gated()) decay = hn::Mul(decay, hn::Load(d, job.a + i));
      hn::Store(hn::Mul(decay, x), d, job.entering + i);
      if (job.gated()) hn::Store(hn::Neg(x), d, job.y + i);
    }
  }
}

// A unit lower triangular system with many right sides:  z_i += Σ_{j < i} a_ij w_j,  w_i = beta_i z_i,  i = 0 ... 15.
// Rows may be counted backwards in memory, by negative distances.
struct System {
  const float* a;  // a_ij at i·a_row + j·a_column
  int64_t a_row, a_column;
  const float* beta;
  int64_t beta_row;
  float *z, *w;
  int64_t row, columns;
};

// kVecs vectors of columns from column j on, four rows at a time: what the rows above give, then the four among
// themselves.
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
      const Vec beta = hn::Load(d, s.beta + (i + r) * s.beta_row);
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
  constexpr int kVecs = kTileRows / 2;  // what there are registers for
  int64_t j = 0;
  for (; j + kVecs * kLanes <= s.columns; j += kVecs * kLanes) solve_columns<kVecs>(s, j);
  for (; j < s.columns; j += kLanes) solve_columns<1>(s, j);
}

// What is stored instead of v: errors = v - S'ᵀk, stored.v = beta times them; held.scores and v_rows are there.
inline void find_corrections(const Tile& tile, const float* state, float* errors) {
  const Job& job = tile.held;
  multiply<Start::kAdd>({.a = job.entering,
                         .a_row = job.keys,
                         .a_column = 1,
                         .b = state,
                         .b_row = job.values,
                         .out = errors,
                         .out_row = job.values,
                         .rows = kTokens,
                         .columns = job.values,
                         .depth = job.keys,
                         .from = tile.stored.v_rows,
                         .from_row = tile.stored.v_row,
                         .fetcher = job.fetcher});
  solve({.a = job.scores,
         .a_row = kTokens,
         .a_column = 1,
         .beta = tile.beta,
         .beta_row = kLanes,
         .z = errors,
         .w = tile.stored.v,
         .row = job.values,
         .columns = job.values});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::delta
HWY_AFTER_NAMESPACE();

#endif
