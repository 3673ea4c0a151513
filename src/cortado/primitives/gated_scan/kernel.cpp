// The gated scan in tiles of 16 tokens; README.md, "The kernel". Compiled once for each instruction set.
#include "cortado/primitives/gated_scan/kernel.h"

#include <stdlib.h>

#define HWY_DISABLED_TARGETS HWY_SSSE3
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/gated_scan/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/tiles-inl.h"

#ifndef CORTADO_GATED_SCAN_KERNEL_ONCE
#define CORTADO_GATED_SCAN_KERNEL_ONCE
namespace cortado::gated {
namespace {

// Tiles between two states kept by the backward: its memory is a state each, and one for each tile in between.
constexpr int64_t kSegment = 8;

// The work of all threads: jobs are taken one after the other.
struct Jobs {
  const ScanKernel* scan;
  int64_t value_blocks, block;  // forward only: blocks of columns, each computed on its own
  int64_t count, next;

  int64_t take() { return __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); }
};

}  // namespace
}  // namespace cortado::gated
#endif

HWY_BEFORE_NAMESPACE();
namespace cortado::gated {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// One head of one row, or a block of its columns, on one thread. Tiles are [16, keys] or [16, values], padded.
struct Job {
  const ScanKernel& in;
  int64_t row = 0, head = 0, first = 0, length = 0;  // length tokens from `first` on
  int64_t column = 0, columns = 0;                   // of v and w
  int64_t keys = 0, values = 0;                      // padded widths

  float *y = nullptr, *x = nullptr, *w = nullptr, *v = nullptr, *a = nullptr;  // a = exp(gates)
  float *enter = nullptr, *leave = nullptr;  // products of a: from the tile's start up to t; after t to the tile's end
  float* through = nullptr;                  // of the whole tile, [keys]
  float *entering = nullptr, *leaving = nullptr,
        *self = nullptr;                  // y ⊙ enter, x ⊙ leave, x ⊙ bonus; without gates or bonus y, x, x themselves
  float *scores = nullptr, *m = nullptr;  // [16,16]: Σ y_t x_s decay, w_t · v_s
  float *dy = nullptr, *dx = nullptr, *dw = nullptr, *dv = nullptr, *dg = nullptr;  // results
  float *bonus = nullptr, *dbonus = nullptr, *crossing = nullptr;  // [keys]; crossing = rowsum(S ⊙ ∂L/∂S')
  float *w_lanes = nullptr, *v_lanes = nullptr, *lanes = nullptr;  // transposed tiles
  float *spare = nullptr, *parts = nullptr;                        // a tile; [16, kLanes]
  float *state = nullptr, *grad = nullptr;                         // S at the tile's start; ∂L/∂S behind the tile
  float *tile_states = nullptr, *segment_states = nullptr;         // backward: [kSegment] and one a segment

  Fetcher* fetcher = nullptr;
  // v and dw of a forward along the keys, in place or copied.
  const float* v_rows = nullptr;
  int64_t v_row = 0;

  bool before() const { return in.bonus; }  // reads come before writes
  bool gated() const { return in.g.data; }
  bool backward() const { return in.dx.data; }
  int64_t state_size() const { return keys * values; }
  int64_t tiles() const { return (length + kTokens - 1) / kTokens; }

  // Tile number i, counted in the direction of time.
  Stretch stretch(int64_t i) const {
    const int64_t start = i * kTokens, left = length - start;
    const int64_t token = in.reverse ? first + length - 1 - start : first + start;
    return {in.bounds ? 0 : row, head, token, in.reverse ? -1 : 1, left < kTokens ? left : kTokens};
  }
};

// Deals out one block of memory; without a block it only counts.
struct Arena {
  float* base = nullptr;
  int64_t used = 0;

  float* take(int64_t n) {
    float* part = base ? base + used : nullptr;
    used += round_up(n, 16);
    return part;
  }
};

void lay_out(Job& job, Arena& arena) {
  const int64_t key_tile = kTokens * job.keys, value_tile = kTokens * job.values;
  const bool gated = job.gated(), needs_m = job.in.dy.data || job.backward();
  for (float** part : {&job.y, &job.x, &job.a, &job.enter, &job.leave}) *part = arena.take(key_tile);
  job.spare = arena.take(value_tile > key_tile ? value_tile : key_tile);
  for (float** part : {&job.v, &job.w, &job.dw}) *part = arena.take(value_tile);
  job.entering = gated ? arena.take(key_tile) : job.y;
  job.leaving = gated ? arena.take(key_tile) : job.x;
  job.self = job.before() ? arena.take(key_tile) : job.x;
  for (float** part : {&job.through, &job.bonus, &job.dbonus, &job.crossing}) *part = arena.take(job.keys);
  job.scores = arena.take(kTokens * kTokens);
  job.parts = arena.take(kTokens * kLanes);
  job.state = arena.take(job.state_size());
  if (!needs_m) return;
  for (float** part : {&job.dy, &job.dx, &job.dg, &job.lanes}) *part = arena.take(key_tile);
  for (float** part : {&job.w_lanes, &job.v_lanes, &job.dv}) *part = arena.take(value_tile);
  job.m = arena.take(kTokens * kTokens);
  if (!job.backward()) return;
  job.grad = arena.take(job.state_size());
  job.tile_states = arena.take(kSegment * job.state_size());
  job.segment_states = arena.take((job.in.tokens / (kSegment * kTokens) + 1) * job.state_size());
}

// --- States: [h,K,V] outside, padded inside. ---

float* state_address(const Job& job, const States& states) {
  return states.data + (job.row * states.heads + job.head / states.repeat) * job.in.keys * job.in.values + job.column;
}

void read_state(const Job& job, const States& states, float* to) {
  if (!states.data) return fill(to, job.state_size(), 0);
  const float* from = state_address(job, states);
  for (int64_t k = 0; k < job.in.keys; ++k) {
    read_row(from + k * job.in.values, 1, job.columns, 1.0f, to + k * job.values, job.values);
  }
  fill(to + job.in.keys * job.values, (job.keys - job.in.keys) * job.values, 0);
}

// Several heads may share a state: the first of them writes it.
void write_state(const Job& job, const float* from, const States& states) {
  if (!states.data || job.head % states.repeat != 0) return;
  float* to = state_address(job, states);
  for (int64_t k = 0; k < job.in.keys; ++k) write_row(from + k * job.values, to + k * job.in.values, 1, job.columns);
}

// --- A tile's inputs. ---

// exp(g), and `through` = exp of the sum of g: more exact than a product of rounded factors, for its errors add up over
// all tiles.
void read_gates(const Job& job, const Stretch& at) {
  const Floats d;
  const bool wide = job.in.gate_per_channel;
  const int64_t width = wide ? job.keys : kLanes;
  float* g = wide ? job.a : job.parts;
  read_tile(job.in.g, at, 0, wide ? job.in.keys : 1, 1, g, width);
  if (!wide) {
    for (int64_t t = 0; t < kTokens; ++t) fill(g + t * kLanes, kLanes, g[t * kLanes]);
  }
  for (int64_t k = 0; k < width; k += kLanes) {
    Vec sum = hn::Zero(d);
    for (int64_t t = 0; t < kTokens; ++t) {
      const Vec gate = hn::Load(d, g + t * width + k);
      sum = hn::Add(sum, gate);
      hn::Store(exp_of(d, gate), d, g + t * width + k);
    }
    hn::Store(exp_of(d, sum), d, job.through + k);
  }
  if (wide) return;
  for (int64_t t = 0; t < kTokens; ++t) fill(job.a + t * job.keys, job.keys, g[t * kLanes]);
  fill(job.through, job.keys, job.through[0]);
}

// x and v, the gates, and x's decays to the tile's end: what the state needs.
void read_writes(Job& job, const Stretch& at) {
  const Floats d;
  read_tile(job.in.x, at, 0, job.in.keys, 1, job.x, job.keys);
  const float* v = job.m ? nullptr : tile_in_place(job.in.v, at, job.column, job.columns, job.values);
  if (!v) read_tile(job.in.v, at, job.column, job.columns, 1, job.v, job.values);
  job.v_rows = v ? v : job.v;
  job.v_row = v ? at.step * job.in.v.token : job.values;
  if (!job.gated()) return;
  read_gates(job, at);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec decay = hn::Set(d, 1.0f);
    for (int64_t i = (kTokens - 1) * job.keys + k; i >= 0; i -= job.keys) {
      if (job.backward()) hn::Store(decay, d, job.leave + i);
      hn::Store(hn::Mul(decay, hn::Load(d, job.x + i)), d, job.leaving + i);
      decay = hn::Mul(decay, hn::Load(d, job.a + i));
    }
  }
}

// y and w, and y's decays from the tile's start: what reads the state.
void read_reads(const Job& job, const Stretch& at) {
  const Floats d;
  if (job.in.y.data) read_tile(job.in.y, at, 0, job.in.keys, job.in.y_factor, job.y, job.keys);
  if (job.in.w.data) read_tile(job.in.w, at, job.column, job.columns, job.in.w_factor, job.w, job.values);
  for (int64_t k = 0; job.before() && k < job.keys; k += kLanes) {
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      hn::Store(hn::Mul(hn::Load(d, job.bonus + k), hn::Load(d, job.x + i)), d, job.self + i);
    }
  }
  for (int64_t k = 0; job.gated() && k < job.keys; k += kLanes) {
    Vec decay = hn::Set(d, 1.0f);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      const Vec next = hn::Mul(decay, hn::Load(d, job.a + i));
      if (!job.before()) decay = next;
      if (job.m) hn::Store(decay, d, job.enter + i);
      hn::Store(hn::Mul(decay, hn::Load(d, job.y + i)), d, job.entering + i);
      decay = next;
    }
  }
}

// Has tile i, if there is one, fetched while the present one is worked on: all of it or what changes the state.
void look_ahead(const Job& job, int64_t i, bool all) {
  job.fetcher->clear();
  if (i < 0 || i >= job.tiles()) return;
  const Stretch at = job.stretch(i);
  const ScanKernel& in = job.in;
  job.fetcher->add(in.x, at, 0, in.keys);
  job.fetcher->add(in.v, at, job.column, job.columns);
  job.fetcher->add(in.g, at, 0, in.gate_per_channel ? in.keys : 1);
  if (!all) return;
  for (const Timed* x : {&in.y, &in.dy, &in.dx, &in.dg}) job.fetcher->add(*x, at, 0, in.keys);
  for (const Timed* x : {&in.w, &in.dw, &in.dv}) job.fetcher->add(*x, at, job.column, job.columns);
}

// --- Pairs of tokens inside a tile. ---

// scores[t][s] += Σ y_t x_s Π_{s < i <= t} a_i, over kVecs vectors of keys from `k` on. With a bonus t's own gate is
// left out.
template <int kVecs>
HWY_INLINE void score_block(const Job& job, int64_t k) {
  const Floats d;
  for (int64_t t = 0; t < kTokens; ++t) {
    job.fetcher->fetch(1);
    Vec seen[kVecs];  // y_t and the decays down to s
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) seen[c] = hn::Load(d, job.y + t * job.keys + k + c * kLanes);
    for (int64_t first = t / 4 * 4; first >= 0; first -= 4) {
      Vec sums[4];
#pragma GCC unroll 4
      for (int i = 3; i >= 0; --i) {
        const int64_t s = first + i;
        sums[i] = hn::Zero(d);
        if (s > t) continue;
        const float* x = (s == t ? job.self : job.x) + s * job.keys + k;
        const float* a = job.a + s * job.keys + k;
        const bool decays = job.gated() && !(job.before() && s == t);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) {
          sums[i] = hn::MulAdd(seen[c], hn::Load(d, x + c * kLanes), sums[i]);
          if (decays) seen[c] = hn::Mul(seen[c], hn::Load(d, a + c * kLanes));
        }
      }
      add_sums_of_four(d, sums, job.scores + t * kTokens + first);
    }
  }
}

HWY_NOINLINE void score_pairs(const Job& job) {
  fill(job.scores, kTokens * kTokens, 0);
  int64_t k = 0;
  for (; k + 4 * kLanes <= job.keys; k += 4 * kLanes) score_block<4>(job, k);
  for (; k < job.keys; k += kLanes) score_block<1>(job, k);
}

// Adds what the pairs give: dy_t += Σ_s m[t][s] x_s decay, dx_s += Σ_t m[t][s] y_t decay, and with kGate to the gates
// between s and t the product of all of these.
template <bool kRest, bool kGate>
HWY_NOINLINE void pair_gradients(const Job& job) {
  const Floats d;
  const int64_t width = job.keys, own = job.before() ? 1 : 0;
  for (int64_t k = 0; k < width; k += kLanes) {
    for (int64_t t = 0; t < kTokens; ++t) {
      job.fetcher->fetch(1);
      const float* m = job.m + t * kTokens;
      const Vec y = hn::Load(d, job.y + t * width + k);
      Vec decay = job.before() ? hn::Set(d, 1.0f) : hn::Load(d, job.a + t * width + k);
      Vec sum = hn::Mul(hn::Set(d, m[t]), hn::Load(d, job.self + t * width + k));
      for (int64_t s = t - 1; s >= 0; --s) {
        const Vec weight = hn::Mul(decay, hn::Set(d, m[s]));
        const Vec part = hn::Mul(weight, hn::Load(d, job.x + s * width + k));
        if (kRest) {
          float* dx = job.dx + s * width + k;
          hn::Store(hn::MulAdd(weight, y, hn::Load(d, dx)), d, dx);
        }
        if (kGate) {
          hn::Store(part, d, job.parts + s * kLanes);
        } else {
          sum = hn::Add(sum, part);
        }
        decay = hn::Mul(decay, hn::Load(d, job.a + s * width + k));
      }
      if (kGate) {
        Vec upto = hn::Zero(d);
        for (int64_t s = 0; s < t - own; ++s) {
          upto = hn::Add(upto, hn::Load(d, job.parts + s * kLanes));
          float* dg = job.dg + (s + 1) * width + k;
          hn::Store(hn::MulAdd(y, upto, hn::Load(d, dg)), d, dg);
        }
        if (own && t > 0) upto = hn::Add(upto, hn::Load(d, job.parts + (t - 1) * kLanes));
        sum = hn::Add(sum, upto);
      }
      float* dy = job.dy + t * width + k;
      hn::Store(hn::Add(sum, hn::Load(d, dy)), d, dy);
    }
  }
}

// A pair of a token with itself: dx += m[t][t] y_t, times the bonus if there is one.
void diagonal_gradients(const Job& job) {
  const Floats d;
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    const Vec bonus = job.before() ? hn::Load(d, job.bonus + k) : hn::Set(d, 1.0f);
    Vec total = hn::Load(d, job.dbonus + k);
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t i = t * job.keys + k;
      const Vec part = hn::Mul(hn::Set(d, job.m[t * kTokens + t]), hn::Load(d, job.y + i));
      hn::Store(hn::MulAdd(part, bonus, hn::Load(d, job.dx + i)), d, job.dx + i);
      total = hn::MulAdd(part, hn::Load(d, job.x + i), total);
    }
    hn::Store(total, d, job.dbonus + k);
  }
}

// --- What the state between the tiles gives. ---

// to[t] = decay_t ⊙ (state · values_t), the values given with tokens in their lanes.
void read_by_values(const Job& job, const float* state, const float* value_lanes, const float* decay, float* to) {
  const Floats d;
  multiply<Start::kZero>({.a = state,
                          .a_row = job.values,
                          .a_column = 1,
                          .b = value_lanes,
                          .b_row = kTokens,
                          .out = job.lanes,
                          .out_row = kTokens,
                          .rows = job.keys,
                          .columns = kTokens,
                          .depth = job.values,
                          .fetcher = job.fetcher});
  from_token_lanes(job.lanes, job.keys, to, job.spare);
  for (int64_t i = 0; job.gated() && i < kTokens * job.keys; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, to + i), hn::Load(d, decay + i)), d, to + i);
  }
}

// dw = scores v + entering S
void read_by_keys(const Job& job, const Stretch& at) {
  float* in_place = tile_in_place(job.in.dw, at, job.column, job.columns, job.values);
  float* to = in_place ? in_place : job.dw;
  const int64_t row = in_place ? at.step * job.in.dw.token : job.values;
  multiply<Start::kZero, Terms::kUpToRow>({.a = job.scores,
                                           .a_row = kTokens,
                                           .a_column = 1,
                                           .b = job.v_rows,
                                           .b_row = job.v_row,
                                           .out = to,
                                           .out_row = row,
                                           .rows = kTokens,
                                           .columns = job.values,
                                           .depth = kTokens});
  multiply<Start::kAdd>({.a = job.entering,
                         .a_row = job.keys,
                         .a_column = 1,
                         .b = job.state,
                         .b_row = job.values,
                         .out = to,
                         .out_row = row,
                         .rows = kTokens,
                         .columns = job.values,
                         .depth = job.keys,
                         .from = to,
                         .fetcher = job.fetcher});
  if (!in_place) write_tile(to, row, job.in.dw, at, job.column, job.columns);
}

// to = diag(through) from + keysᵀ values
void advance(const Job& job, const float* keys, const float* values, int64_t values_row, const float* from, float* to) {
  multiply<Start::kScaled>({.a = keys,
                            .a_row = 1,
                            .a_column = job.keys,
                            .b = values,
                            .b_row = values_row,
                            .out = to,
                            .out_row = job.values,
                            .rows = job.keys,
                            .columns = job.values,
                            .depth = kTokens,
                            .from = from,
                            .scale = job.through,
                            .fetcher = job.fetcher});
}

// m = w vᵀ, and the transposed tiles it takes.
void weigh_pairs(const Job& job) {
  to_token_lanes(job.w, job.values, job.w_lanes, job.spare);
  to_token_lanes(job.v, job.values, job.v_lanes, job.spare);
  multiply<Start::kZero>({.a = job.w,
                          .a_row = job.values,
                          .a_column = 1,
                          .b = job.v_lanes,
                          .b_row = kTokens,
                          .out = job.m,
                          .out_row = kTokens,
                          .rows = kTokens,
                          .columns = kTokens,
                          .depth = job.values});
}

// The gates' gradient from what crosses the tile's bounds; dy and dx hold only that yet. Every summand has the gate's
// own factor.
void gate_flow(const Job& job) {
  const Floats d;
  fill(job.crossing, job.keys, 0);
  for (int64_t k = 0; k < job.keys; k += 4) {
    Vec sums[4];
    for (int i = 0; i < 4; ++i) {
      sums[i] = hn::Zero(d);
      for (int64_t j = (k + i) * job.values; j < (k + i + 1) * job.values; j += kLanes) {
        sums[i] = hn::MulAdd(hn::Load(d, job.state + j), hn::Load(d, job.grad + j), sums[i]);
      }
    }
    add_sums_of_four(d, sums, job.crossing + k);
  }
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec sum = hn::Mul(hn::Load(d, job.crossing + k), hn::Load(d, job.through + k));
    for (int64_t i = (kTokens - 1) * job.keys + k; i >= 0; i -= job.keys) {
      const Vec next = hn::MulAdd(hn::Load(d, job.y + i), hn::Load(d, job.dy + i), sum);
      hn::Store(job.before() ? sum : next, d, job.dg + i);
      sum = next;
    }
    sum = hn::Zero(d);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      hn::Store(hn::Add(sum, hn::Load(d, job.dg + i)), d, job.dg + i);
      sum = hn::MulAdd(hn::Load(d, job.x + i), hn::Load(d, job.dx + i), sum);
    }
  }
}

void write_gate_gradient(const Job& job, const Stretch& at) {
  const Floats d;
  if (job.in.gate_per_channel) return write_tile(job.dg, job.keys, job.in.dg, at, 0, job.in.keys);
  for (int64_t t = 0; t < kTokens; ++t) {
    Vec sum = hn::Zero(d);
    for (int64_t k = 0; k < job.keys; k += kLanes) sum = hn::Add(sum, hn::Load(d, job.dg + t * job.keys + k));
    hn::Store(hn::SumOfLanes(d, sum), d, job.parts + t * kLanes);
  }
  write_tile(job.parts, kLanes, job.in.dg, at, 0, 1);
}

// --- The scan. ---

void forward(Job& job) {
  read_state(job, job.in.initial, job.state);
  for (int64_t i = 0; i < job.tiles(); ++i) {
    const Stretch at = job.stretch(i);
    read_writes(job, at);
    read_reads(job, at);
    look_ahead(job, i + 1, true);
    if (job.in.dw.data) {
      score_pairs(job);
      read_by_keys(job, at);
    } else if (job.in.dy.data) {
      weigh_pairs(job);
      read_by_values(job, job.state, job.w_lanes, job.enter, job.dy);
      pair_gradients<false, false>(job);
      write_tile(job.dy, job.keys, job.in.dy, at, 0, job.in.keys);
    }
    advance(job, job.leaving, job.v_rows, job.v_row, job.state, job.state);
  }
  write_state(job, job.state, job.in.final_state);
}

// One tile of the backward, from its state and the gradient behind it, which becomes the gradient before it.
void differentiate(Job& job, int64_t tile) {
  const Stretch at = job.stretch(tile);
  read_writes(job, at);
  read_reads(job, at);
  look_ahead(job, tile - 1, true);
  score_pairs(job);
  weigh_pairs(job);
  const bool gate = job.in.dg.data;
  read_by_values(job, job.grad, job.v_lanes, job.leave, job.dx);
  if (gate || job.in.dy.data) read_by_values(job, job.state, job.w_lanes, job.enter, job.dy);
  if (gate) {
    gate_flow(job);
    pair_gradients<true, true>(job);
    write_gate_gradient(job, at);
  } else {
    pair_gradients<true, false>(job);
  }
  diagonal_gradients(job);
  write_tile(job.dy, job.keys, job.in.dy, at, 0, job.in.keys);
  write_tile(job.dx, job.keys, job.in.dx, at, 0, job.in.keys);
  if (job.in.dw.data) read_by_keys(job, at);
  multiply<Start::kZero, Terms::kFromRow>({.a = job.scores,
                                           .a_row = 1,
                                           .a_column = kTokens,
                                           .b = job.w,
                                           .b_row = job.values,
                                           .out = job.dv,
                                           .out_row = job.values,
                                           .rows = kTokens,
                                           .columns = job.values,
                                           .depth = kTokens});
  multiply<Start::kAdd>({.a = job.leaving,
                         .a_row = job.keys,
                         .a_column = 1,
                         .b = job.grad,
                         .b_row = job.values,
                         .out = job.dv,
                         .out_row = job.values,
                         .rows = kTokens,
                         .columns = job.values,
                         .depth = job.keys,
                         .from = job.dv});
  write_tile(job.dv, job.values, job.in.dv, at, 0, job.columns);
  advance(job, job.entering, job.w, job.values, job.grad, job.grad);
}

// Forwards for the states at the segments' starts; then each segment, from the last, forwards for its tiles' states and
// back.
void backward(Job& job) {
  const int64_t tiles = job.tiles(), size = job.state_size();
  float* state = job.state;
  read_state(job, job.in.initial, job.segment_states);
  read_state(job, job.in.final_grad, job.grad);
  if (job.head % (job.in.final_grad.repeat ? job.in.final_grad.repeat : 1) != 0) fill(job.grad, size, 0);
  fill(job.dbonus, job.keys, 0);
  const int64_t segments = (tiles + kSegment - 1) / kSegment;
  for (int64_t i = 0; i < (segments - 1) * kSegment; ++i) {
    read_writes(job, job.stretch(i));
    look_ahead(job, i + 1, false);
    float* from = job.segment_states + i / kSegment * size;
    const bool last = i % kSegment == kSegment - 1;
    advance(job, job.leaving, job.v_rows, job.v_row, i % kSegment == 0 ? from : state, last ? from + size : state);
  }
  for (int64_t segment = segments - 1; segment >= 0; --segment) {
    const int64_t start = segment * kSegment, count = tiles - start < kSegment ? tiles - start : kSegment;
    copy(job.segment_states + segment * size, size, job.tile_states);
    for (int64_t i = 0; i + 1 < count; ++i) {
      read_writes(job, job.stretch(start + i));
      look_ahead(job, start + i + 1, i + 2 >= count);
      advance(job, job.leaving, job.v_rows, job.v_row, job.tile_states + i * size, job.tile_states + (i + 1) * size);
    }
    for (int64_t i = count - 1; i >= 0; --i) {
      job.state = job.tile_states + i * size;
      differentiate(job, start + i);
    }
  }
  job.state = state;
  write_state(job, job.grad, job.in.initial_grad);
  if (job.in.dbonus)
    write_row(job.dbonus, job.in.dbonus + (job.row * job.in.heads + job.head) * job.in.keys, 1, job.in.keys);
}

// What stays the same in all of a worker's jobs: absent inputs are zeros, absent gates ones.
void set_constants(Job& job) {
  const int64_t tile = kTokens * job.keys;
  fill(job.y, tile, 0);
  fill(job.w, kTokens * job.values, 0);
  fill(job.through, job.keys, 1);
  for (float* part : {job.a, job.enter, job.leave}) fill(part, tile, 1);
}

void run_jobs(Jobs& jobs) {
  const ScanKernel& in = *jobs.scan;
  const FlushDenormals guard;
  Fetcher fetcher;
  Job job{.in = in, .keys = round_up(in.keys, 16), .values = round_up(jobs.block, kLanes)};
  Arena arena;
  job.fetcher = &fetcher;
  lay_out(job, arena);
  arena = {static_cast<float*>(aligned_alloc(64, arena.used * sizeof(float))), 0};
  if (!arena.base) abort();
  lay_out(job, arena);
  set_constants(job);
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    const int64_t stream = i / jobs.value_blocks;
    job.row = stream / in.heads;
    job.head = stream % in.heads;
    job.first = in.bounds ? in.bounds[job.row] : 0;
    job.length = in.bounds ? in.bounds[job.row + 1] - job.first : in.tokens;
    job.column = i % jobs.value_blocks * jobs.block;
    job.columns = in.values - job.column < jobs.block ? in.values - job.column : jobs.block;
    if (in.bonus) read_row(in.bonus + job.head * in.keys, 1, in.keys, 1.0f, job.bonus, job.keys);
    job.backward() ? backward(job) : forward(job);
  }
  free(arena.base);
}

// --- One token. ---

// One head's input as a row of floats, padded with zeros; the gates' as factors.
struct StepInputs {
  HWY_ALIGN float y[kStepWidth], x[kStepWidth], w[kStepWidth], v[kStepWidth], a[kStepWidth], bonus[kStepWidth];
  HWY_ALIGN float state[kStepWidth], read[kStepWidth];  // a row of the state; what it gives
};

void read_token(const Timed& x, const Stretch& at, int64_t n, float factor, float* to) {
  if (!x.data) return;
  const int64_t width = round_up(n, kLanes);
  if (x.type == Element::kFloat32) {
    read_row(address<float>(x, at, 0), x.inner, n, factor, to, width);
  } else if (x.type == Element::kBFloat16) {
    read_row(address<BFloat16>(x, at, 0), x.inner, n, factor, to, width);
  } else {
    read_row(address<hwy::float16_t>(x, at, 0), x.inner, n, factor, to, width);
  }
}

void read_step_gates(const ScanKernel& in, const Stretch& at, float* a) {
  const Floats d;
  const int64_t width = round_up(in.keys, kLanes);
  if (!in.g.data) return fill(a, width, 1);
  read_token(in.g, at, in.gate_per_channel ? in.keys : 1, 1, a);
  if (!in.gate_per_channel) fill(a, width, a[0]);
  for (int64_t k = 0; k < width; k += kLanes) hn::Store(exp_of(d, hn::Load(d, a + k)), d, a + k);
}

// Σ row ⊙ w of a padded row
HWY_INLINE float inner_product(const float* row, const float* w, int64_t width) {
  const Floats d;
  Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < width; j += kLanes) sum = hn::MulAdd(hn::Load(d, row + j), hn::Load(d, w + j), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// to += factor · row
HWY_INLINE void add_scaled(const float* row, float factor, float* to, int64_t width) {
  const Floats d;
  for (int64_t j = 0; j < width; j += kLanes) {
    hn::Store(hn::MulAdd(hn::Set(d, factor), hn::Load(d, row + j), hn::Load(d, to + j)), d, to + j);
  }
}

// Head `head` of a row, whose state `before` (null: 0) becomes `after`, or has become it if another head that shares it
// came before.
void step_head(const ScanKernel& in, StepInputs& s, const Stretch& at, const float* before, float* after,
               bool updated) {
  const Floats d;
  const int64_t width = round_up(in.values, kLanes);
  read_token(in.y, at, in.keys, in.y_factor, s.y);
  read_token(in.w, at, in.values, in.w_factor, s.w);
  fill(s.read, in.dw.data ? width : round_up(in.keys, kLanes), 0);
  float self = 0;
  for (int64_t k = 0; k < in.keys; ++k) {
    const bool old = in.bonus || !updated;
    const float* from = old ? before : after;
    from ? read_row(from + k * in.values, 1, in.values, 1.0f, s.state, width) : fill(s.state, width, 0);
    if (in.bonus) {
      self += s.y[k] * in.bonus[at.head * in.keys + k] * s.x[k];
      add_scaled(s.state, s.y[k], s.read, width);
    }
    if (!updated) {
      for (int64_t j = 0; j < width; j += kLanes) {
        const Vec kept = hn::Mul(hn::Set(d, s.a[k]), hn::Load(d, s.state + j));
        hn::Store(hn::MulAdd(hn::Set(d, s.x[k]), hn::Load(d, s.v + j), kept), d, s.state + j);
      }
      write_row(s.state, after + k * in.values, 1, in.values);
    }
    if (in.bonus) continue;
    if (in.dw.data) {
      add_scaled(s.state, s.y[k], s.read, width);
    } else {
      s.read[k] = inner_product(s.state, s.w, width);
    }
  }
  if (in.bonus) add_scaled(s.v, self, s.read, width);
  write_tile(s.read, round_up(in.dw.data ? in.values : in.keys, kLanes), in.dw.data ? in.dw : in.dy, at, 0,
             in.dw.data ? in.values : in.keys);
}

void step_jobs(Jobs& jobs) {
  const ScanKernel& in = *jobs.scan;
  const FlushDenormals guard;
  StepInputs inputs;
  const int64_t shared = in.heads / in.final_state.heads, size = in.keys * in.values;
  for (int64_t i = jobs.take(); i < jobs.count; i = jobs.take()) {
    const int64_t row = i / in.final_state.heads, head = i % in.final_state.heads * shared;
    const Stretch at{row, head, 0, 1, 1};
    read_token(in.x, at, in.keys, 1, inputs.x);
    read_token(in.v, at, in.values, 1, inputs.v);
    read_step_gates(in, at, inputs.a);
    const float* before = in.initial.data ? in.initial.data + i * size : nullptr;
    for (int64_t j = 0; j < shared; ++j) {
      step_head(in, inputs, {row, head + j, 0, 1, 1}, before, in.final_state.data + i * size, j > 0);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::gated
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::gated {

namespace {

HWY_EXPORT(run_jobs);
HWY_EXPORT(step_jobs);

void work(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(run_jobs)(*static_cast<Jobs*>(jobs)); }
void work_step(void* jobs, int64_t) { HWY_DYNAMIC_DISPATCH(step_jobs)(*static_cast<Jobs*>(jobs)); }

int64_t divided(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace

void run_scan(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const int64_t streams = scan.rows * scan.heads;
  if (streams == 0) return;
  Jobs jobs{.scan = &scan, .value_blocks = 1, .block = scan.values, .count = 0, .next = 0};
  const bool independent_columns = scan.dw.data && !scan.dy.data && !scan.dx.data;
  if (independent_columns && streams < parallel.threads) {
    constexpr int64_t kUnit = 32;
    jobs.block = divided(divided(scan.values, divided(parallel.threads, streams)), kUnit) * kUnit;
    jobs.value_blocks = divided(scan.values, jobs.block);
  }
  jobs.count = streams * jobs.value_blocks;
  const int64_t workers = jobs.count < parallel.threads ? jobs.count : parallel.threads;
  workers > 1 ? parallel.run(workers, &work, &jobs) : work(&jobs, 0);
}

void run_step(const ScanKernel& scan, const kernels::Parallel& parallel) {
  const int64_t states = scan.rows * scan.final_state.heads;
  Jobs jobs{.scan = &scan, .value_blocks = 1, .block = scan.values, .count = states, .next = 0};
  constexpr int64_t kWorthAThread =
      1 << 16;  // of a state's elements: below, waking a thread takes longer than the work
  const int64_t useful = states * scan.keys * scan.values / kWorthAThread;
  const int64_t workers = useful < parallel.threads ? useful : parallel.threads;
  workers > 1 ? parallel.run(workers, &work_step, &jobs) : work_step(&jobs, 0);
}

}  // namespace cortado::gated
#endif
