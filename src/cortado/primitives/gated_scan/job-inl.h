// A thread's working set: a head's buffers, its state, and a tile's inputs. Part of kernel.cpp, compiled once per
// instruction set (hence the unusual guard).
#if defined(CORTADO_GATED_SCAN_JOB_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_GATED_SCAN_JOB_INL_H
#undef CORTADO_GATED_SCAN_JOB_INL_H
#else
#define CORTADO_GATED_SCAN_JOB_INL_H
#endif

#include "cortado/primitives/gated_scan/jobs.h"
#include "cortado/primitives/kernels/products-inl.h"
#include "cortado/primitives/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::gated {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// One head of one row, or a block of its state, on one thread.
struct Job : Tiling {
  const ScanKernel& in;
  int64_t row = 0, head = 0, first = 0, length = 0;  // length tokens from `first` on
  int64_t key = 0, key_count = 0;                    // of x, y and the gates
  int64_t column = 0, columns = 0;                   // of v and w

  float *y = nullptr, *x = nullptr, *w = nullptr, *v = nullptr, *a = nullptr;  // a = exp(gates), and a row of ones
  // Products of a: from the tile's start up to t, and from after t to the tile's end. One number per token unless
  // by_channel.
  float *enter = nullptr, *leave = nullptr;
  float* through = nullptr;  // over the whole tile, [keys]
  float *entering = nullptr, *leaving = nullptr,
        *self = nullptr;                  // y ⊙ enter, x ⊙ leave, x ⊙ bonus; without gates or bonus just y, x, x
  float *scores = nullptr, *m = nullptr;  // [16,16]: Σ y_t x_s decay, w_t · v_s
  float *decays = nullptr,
        *weights = nullptr;  // [16,16], if all channels decay alike: decay from s to t, and m times that
  float *dy = nullptr, *dx = nullptr, *dw = nullptr, *dv = nullptr, *dg = nullptr;  // results
  float *bonus = nullptr, *dbonus = nullptr, *crossing = nullptr;  // [keys]; crossing = rowsum(S ⊙ ∂L/∂S')
  float *w_lanes = nullptr, *v_lanes = nullptr;                    // transposed tiles
  float* parts = nullptr;                                          // [16, kLanes]
  float *state = nullptr, *grad = nullptr;                         // S at the tile's start; ∂L/∂S at its end
  // Backward: states of each tile of a segment, and at the start of each segment, so that only one state per segment
  // and one per tile of a segment are in memory. The gradients at the segments' ends are kept only for other threads.
  float *tile_states = nullptr, *segment_states = nullptr, *segment_grads = nullptr;

  Rows v_rows = {};  // v in place, or a copy

  bool before() const { return in.bonus; }  // reads come before writes
  bool gated() const { return in.g.data; }
  bool by_channel() const { return in.gate_per_channel || before(); }  // whether each channel has its own decays
  bool backward() const { return in.dx.data; }
  int64_t state_size() const { return keys * values; }
  int64_t tiles() const { return (length + kTokens - 1) / kTokens; }
  int64_t segments() const { return (tiles() + kSegment - 1) / kSegment; }

  // Tile number i, in the order of time.
  Stretch stretch(int64_t i) const {
    const int64_t start = i * kTokens, left = length - start;
    const int64_t token = in.reverse ? first + length - 1 - start : first + start;
    return {in.bounds ? 0 : row, head, token, in.reverse ? -1 : 1, left < kTokens ? left : kTokens};
  }
};

// Sets the job to number i of all jobs.
inline void place(Job& job, const Jobs& jobs, int64_t i) {
  const ScanKernel& in = job.in;
  const Blocks& blocks = jobs.blocks;
  const int64_t stream = i / blocks.count();
  job.row = stream / in.heads;
  job.head = stream % in.heads;
  job.first = in.bounds ? in.bounds[job.row] : 0;
  job.length = in.bounds ? in.bounds[job.row + 1] - job.first : in.tokens;
  job.key = blocks.key(i);
  job.key_count = blocks.keys_of(i, in.keys);
  job.column = blocks.value(i);
  job.columns = blocks.values_of(i, in.values);
}

inline void lay_out(Job& job, Scratch& scratch) {
  const int64_t key_tile = kTokens * job.keys, value_tile = kTokens * job.values;
  const bool gated = job.gated(), needs_m = job.in.dy.data || job.backward();
  for (float** part : {&job.y, &job.x, &job.enter, &job.leave}) *part = scratch.take(key_tile);
  job.a = scratch.take(key_tile + job.keys);
  job.spare = scratch.take(value_tile > key_tile ? value_tile : key_tile);
  for (float** part : {&job.v, &job.w, &job.dw}) *part = scratch.take(value_tile);
  job.entering = gated ? scratch.take(key_tile) : job.y;
  job.leaving = gated ? scratch.take(key_tile) : job.x;
  job.self = job.before() ? scratch.take(key_tile) : job.x;
  for (float** part : {&job.through, &job.bonus, &job.dbonus, &job.crossing}) *part = scratch.take(job.keys);
  for (float** part : {&job.scores, &job.decays, &job.weights}) *part = scratch.take(kTokens * kTokens);
  job.parts = scratch.take(kTokens * kLanes);
  job.state = scratch.take(job.state_size());
  if (!needs_m) return;
  for (float** part : {&job.dy, &job.dx, &job.dg, &job.lanes}) *part = scratch.take(key_tile);
  for (float** part : {&job.w_lanes, &job.v_lanes, &job.dv}) *part = scratch.take(value_tile);
  job.m = scratch.take(kTokens * kTokens);
  if (!job.backward()) return;
  job.grad = scratch.take(job.state_size());
  job.tile_states = scratch.take(kSegment * job.state_size());
  job.segment_states = scratch.take((job.in.tokens / (kSegment * kTokens) + 1) * job.state_size());
}

// --- States: [h,K,V] outside, padded inside. ---

inline float* state_address(const Job& job, const States& states) {
  const int64_t state = job.row * states.heads + job.head / states.repeat;
  return states.data + (state * job.in.keys + job.key) * job.in.values + job.column;
}

inline void read_state(const Job& job, const States& states, float* to) {
  if (!states.data) return fill(to, job.state_size(), 0);
  const float* from = state_address(job, states);
  for (int64_t k = 0; k < job.key_count; ++k) {
    read_row(from + k * job.in.values, 1, job.columns, 1.0f, to + k * job.values, job.values);
  }
  fill(to + job.key_count * job.values, (job.keys - job.key_count) * job.values, 0);
}

// Reads the gradient at the last tile's end. If several heads share a state, the first of them reads and writes it.
inline void read_final_grad(const Job& job) {
  read_state(job, job.in.final_grad, job.grad);
  if (job.head % (job.in.final_grad.repeat ? job.in.final_grad.repeat : 1) != 0) fill(job.grad, job.state_size(), 0);
}

inline void write_state(const Job& job, const float* from, const States& states) {
  if (!states.data || job.head % states.repeat != 0) return;
  float* to = state_address(job, states);
  for (int64_t k = 0; k < job.key_count; ++k) write_row(from + k * job.values, to + k * job.in.values, 1, job.columns);
}

// --- Splitting over time (jobs.h). ---

// Opens a block of a stream's state, with its memory for states and gradients. Returns whether the job computes the
// states.
inline bool open_block(Job& job, const Jobs& jobs, int64_t i) {
  const int64_t directions = job.backward() ? 2 : 1, block = i / directions;
  place(job, jobs, block);
  job.segment_states = jobs.kept.of(jobs.kept.states, block);
  job.segment_grads = jobs.kept.of(jobs.kept.grads, block);
  return i % directions == 0;
}

// Stores the gradient at tile i's end if a segment ends there. Returns whether an earlier segment still needs
// gradients.
inline bool keep_grad(const Job& job, int64_t i) {
  const bool last = i % kSegment == kSegment - 1 || i == job.tiles() - 1;
  if (last) copy(job.grad, job.state_size(), job.segment_grads + i / kSegment * job.state_size());
  return i >= kSegment;
}

struct Segment {
  int64_t stream, number, begin, end;  // tiles
};

inline Segment place_segment(Job& job, const Jobs& jobs, int64_t i) {
  const int64_t stream = i / jobs.kept.segments, number = i % jobs.kept.segments;
  place(job, jobs, stream);
  const int64_t begin = number * kSegment, end = begin + kSegment;
  return {stream, number, begin, end < job.tiles() ? end : job.tiles()};
}

// Opens a stream's segment, with the state at its start and in a backward the gradient at its end.
inline Segment open_segment(Job& job, const Jobs& jobs, int64_t i) {
  const Kept& kept = jobs.kept;
  const Segment segment = place_segment(job, jobs, i);
  const int64_t width = round_up(kept.blocks.values, kLanes);
  float* state = job.backward() ? job.tile_states : job.state;
  kept.gather(kept.states, segment.stream, segment.number, job.keys, width, job.values, state);
  if (job.backward()) kept.gather(kept.grads, segment.stream, segment.number, job.keys, width, job.values, job.grad);
  return segment;
}

// Writes the stream's last state, or in a backward its first gradient, if the segment is the outermost.
inline void close_segment(const Job& job, const Segment& segment) {
  if (job.backward() && segment.number == 0) write_state(job, job.grad, job.in.initial_grad);
  if (!job.backward() && segment.end == job.tiles()) write_state(job, job.state, job.in.final_state);
}

// --- A tile's inputs. ---

// decays[t][s] = Π_{s < i <= t} a_i, 0 above the diagonal, for one factor per token.
inline void pair_decays(const Job& job, const float* a) {
  const Floats d;
  for (int64_t s = 0; s < kTokens; s += kLanes) {
    const Vec token = hn::Iota(d, static_cast<float>(s));
    Vec row = hn::Zero(d);
    for (int64_t t = 0; t < kTokens; ++t) {
      row = hn::Mul(row, hn::Set(d, a[t]));
      row = hn::IfThenElse(hn::Eq(token, hn::Set(d, static_cast<float>(t))), hn::Set(d, 1.0f), row);
      hn::Store(row, d, job.decays + t * kTokens + s);
    }
  }
}

// Gates per channel. Logs: exp(g), and `through` = exp of the sum of g, which is more exact than a product of rounded
// factors; its errors would accumulate over all tiles. Factors: g itself and its product.
inline void read_channel_gates(const Job& job, const Stretch& at) {
  const Floats d;
  const bool factors = job.in.gates_are_factors;
  read_tile(job.in.g, at, job.key, job.key_count, 1, job.a, job.keys);
  if (factors) fill(job.a + at.tokens * job.keys, (kTokens - at.tokens) * job.keys, 1);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec all = factors ? hn::Set(d, 1.0f) : hn::Zero(d);
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      const Vec gate = hn::Load(d, job.a + i);
      all = factors ? hn::Mul(all, gate) : hn::Add(all, gate);
      if (!factors) hn::Store(exp_of(d, gate), d, job.a + i);
    }
    hn::Store(factors ? all : exp_of(d, all), d, job.through + k);
  }
}

// Gates per head: one number per token, with the decays from and to the tile's bounds. Expanded to a tile if pairs are
// computed per channel anyway.
inline void read_head_gates(const Job& job, const Stretch& at) {
  const Floats d;
  float* g = job.parts;
  read_numbers(job.in.g, at, g);
  Vec sum = hn::Zero(d);
  for (int64_t t = 0; t < kTokens; t += kLanes) {
    const Vec gate = hn::Load(d, g + t);
    sum = hn::Add(sum, gate);
    hn::Store(exp_of(d, gate), d, g + t);
  }
  const Vec through = exp_of(d, hn::SumOfLanes(d, sum));
  for (int64_t k = 0; k < job.keys; k += kLanes) hn::Store(through, d, job.through + k);
  if (job.by_channel()) {
    for (int64_t t = 0; t < kTokens; ++t) fill(job.a + t * job.keys, job.keys, g[t]);
    return;
  }
  pair_decays(job, g);
  copy(job.decays + (kTokens - 1) * kTokens, kTokens, job.leave);
  for (int64_t t = 0; t < kTokens; ++t) job.enter[t] = t == 0 ? g[t] : g[t] * job.enter[t - 1];
}

// Copies them if they are also needed transposed.
inline void read_values(Job& job, const Stretch& at) {
  if (!job.m) {
    job.v_rows = rows_of(job.in.v, at, job.column, job.columns, job.v, job.values);
    return;
  }
  read_tile(job.in.v, at, job.column, job.columns, 1, job.v, job.values);
  job.v_rows = {job.v, job.values};
}

// x, the gates, and x decayed to the tile's end.
inline void read_keys(Job& job, const Stretch& at) {
  const Floats d;
  read_tile(job.in.x, at, job.key, job.key_count, 1, job.x, job.keys);
  if (!job.gated()) return;
  job.in.gate_per_channel ? read_channel_gates(job, at) : read_head_gates(job, at);
  if (!job.by_channel()) return times_rows(job.x, job.leave, job.keys, job.leaving);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
    Vec decay = hn::Set(d, 1.0f);
    for (int64_t i = (kTokens - 1) * job.keys + k; i >= 0; i -= job.keys) {
      if (job.backward()) hn::Store(decay, d, job.leave + i);
      hn::Store(hn::Mul(decay, hn::Load(d, job.x + i)), d, job.leaving + i);
      decay = hn::Mul(decay, hn::Load(d, job.a + i));
    }
  }
}

// The inputs that update the state.
inline void read_writes(Job& job, const Stretch& at) {
  read_values(job, at);
  read_keys(job, at);
}

// The inputs that read the state: y, decayed from the tile's start, and w.
inline void read_reads(const Job& job, const Stretch& at) {
  const Floats d;
  if (job.in.y.data) read_tile(job.in.y, at, job.key, job.key_count, job.in.y_factor, job.y, job.keys);
  if (job.in.w.data) read_tile(job.in.w, at, job.column, job.columns, job.in.w_factor, job.w, job.values);
  for (int64_t k = 0; job.before() && k < job.keys; k += kLanes) {
    for (int64_t i = k; i < kTokens * job.keys; i += job.keys) {
      hn::Store(hn::Mul(hn::Load(d, job.bonus + k), hn::Load(d, job.x + i)), d, job.self + i);
    }
  }
  if (!job.gated()) return;
  if (!job.by_channel()) return times_rows(job.y, job.enter, job.keys, job.entering);
  for (int64_t k = 0; k < job.keys; k += kLanes) {
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

// Sets what is constant over all of a worker's jobs: absent inputs are zeros, absent gates ones.
inline void set_constants(Job& job) {
  const int64_t tile = kTokens * job.keys;
  fill(job.y, tile, 0);
  fill(job.w, kTokens * job.values, 0);
  fill(job.through, job.keys, 1);
  fill(job.a, tile + job.keys, 1);
  pair_decays(job, job.a);
}

// Prefetches tile i, if there is one, during the current tile: all inputs, or those that update the state.
inline void look_ahead(const Job& job, int64_t i, bool all) {
  job.fetcher->clear();
  if (i < 0 || i >= job.tiles()) return;
  const Stretch at = job.stretch(i);
  const ScanKernel& in = job.in;
  job.fetcher->add(in.x, at, job.key, job.key_count);
  job.fetcher->add(in.v, at, job.column, job.columns);
  in.gate_per_channel ? job.fetcher->add(in.g, at, job.key, job.key_count) : job.fetcher->add(in.g, at, 0, 1);
  if (!all) return;
  for (const Timed* x : {&in.y, &in.dy, &in.dx, &in.dg}) job.fetcher->add(*x, at, job.key, job.key_count);
  for (const Timed* x : {&in.w, &in.dw, &in.dv}) job.fetcher->add(*x, at, job.column, job.columns);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::gated
HWY_AFTER_NAMESPACE();

#endif
