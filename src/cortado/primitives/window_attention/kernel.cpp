// Blocks of 64 queries against tiles of 64 keys; README.md, "The kernel". Compiled once per instruction set.
#include "cortado/primitives/window_attention/kernel.h"

#include <math.h>
#include <stdlib.h>

#include <algorithm>

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/window_attention/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/over_time.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/window_attention/few-inl.h"
#include "cortado/primitives/window_attention/gradient-inl.h"
#include "cortado/primitives/window_attention/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::window {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// A block's rows: the queries, memory for scores, and the running results: o, not yet divided by the denominator,
// maximum and denominator.
struct Gathered {
  float maximum[kTile], sum[kTile];
  float *q, *scores, *o;  // [64, key_width], [kStrip, 64], [64, value_width]
};

void cap_row(float* scores, Range strip, float softcap) {
  const Floats d;
  for (int64_t j = strip.begin; j < strip.end; j += kLanes) {
    hn::Store(hn::Mul(hn::Set(d, softcap), tanh_of(d, hn::Load(d, scores + j))), d, scores + j);
  }
}

// Turns one row of scores into exp(s - maximum), 0 for keys it does not see; rescales o and sum to the new maximum.
void soften_row(float* scores, Range strip, Range row, float* o, int64_t width, float& maximum, float& sum) {
  const Floats d;
  Vec largest = hn::Set(d, maximum);
  for (int64_t j = strip.begin; j < strip.end; j += kLanes) {
    largest = hn::Max(largest, hn::IfThenElse(lanes_in(row, j), hn::Load(d, scores + j), largest));
  }
  const float before = maximum;
  maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (maximum != before && sum != 0) {
    const float factor = expf(before - maximum);
    sum *= factor;
    scale_row(o, width, factor);
  }
  Vec sums = hn::Zero(d);
  for (int64_t j = strip.begin; j < strip.end; j += kLanes) {
    const Vec weight = exp_of(d, hn::Sub(hn::Load(d, scores + j), hn::Set(d, maximum)));
    const Vec seen = hn::IfThenElseZero(lanes_in(row, j), weight);
    hn::Store(seen, d, scores + j);
    sums = hn::Add(sums, seen);
  }
  sum += hn::GetLane(hn::SumOfLanes(d, sums));
}

// --- Forward. ---

// Accumulates the tile that begins at `key` into the kStrip rows from `first` on.
void gather_strip(const AttentionKernel& p, const Packed& packed, const Block& block, int64_t key, int64_t first,
                  Gathered& rows) {
  const Range strip = block.strip(first, key);
  if (strip.empty()) return;
  const int64_t tile = packed.tile(key), width = packed.value_width;
  float* scores = rows.scores;
  score(rows.q + first * packed.key_width, packed.key_width, p.key_size, packed.turned_keys + tile * kTile * p.key_size,
        strip, scores);
  for (int64_t i = 0; i < kStrip; ++i) {
    const Range row = block.columns(first + i, key);
    if (row.empty()) {
      clear_row(scores + i * kTile, strip);
      continue;
    }
    if (p.softcap > 0) cap_row(scores + i * kTile, strip, p.softcap);
    soften_row(scores + i * kTile, strip, row, rows.o + (first + i) * width, width, rows.maximum[first + i],
               rows.sum[first + i]);
  }
  accumulate({scores + strip.begin, kTile}, packed.values + (tile * kTile + strip.begin) * width, kStrip, strip.size(),
             width, rows.o + first * width);
}

void finish_block(const AttentionKernel& p, const Block& block, Gathered& rows, int64_t width) {
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t row = (block.b * p.queries + block.query + i) * p.heads + block.head;
    const bool none = rows.sum[i] == 0;
    if (!none) scale_row(rows.o + i * width, width, 1 / rows.sum[i]);
    p.row_max[row] = rows.maximum[i];
    p.denominator[row] = none ? 1 : rows.sum[i];
    p.lse[row] = none ? kMinusInfinity : rows.maximum[i] + logf(rows.sum[i]);
  }
  write_rows(rows.o, width, p.o, block.tokens(), p.value_size);
}

// Computes queries [from, to) of all heads of one group.
void forward(const AttentionKernel& p, int64_t b, int64_t group, int64_t from, int64_t to) {
  Scratch scratch;
  const Packed packed = pack(p, b, group, visible_tiles(p, b, from, to), false, scratch);
  Gathered rows;
  rows.q = scratch.take(kTile * packed.key_width);
  rows.scores = scratch.take(kStrip * kTile);
  rows.o = scratch.take(kTile * packed.value_width);
  const int64_t repeat = p.heads / p.groups;
  for (int64_t head = group * repeat; head < (group + 1) * repeat; ++head) {
    for (int64_t query = from; query < to; query += kTile) {
      const Block block = make_block(p, b, head, query, to);
      read_rows(p.q, block.tokens(), p.key_size, query_factor(p), block.rows, rows.q, packed.key_width);
      fill(rows.o, kTile * packed.value_width, 0);
      for (int64_t i = 0; i < kTile; ++i) {
        rows.maximum[i] = kMinusInfinity;
        rows.sum[i] = 0;
      }
      for (int64_t key = block.tiles.begin; key < block.tiles.end; key += kTile) {
        for (int64_t i = 0; i < block.rows; i += kStrip) gather_strip(p, packed, block, key, i, rows);
      }
      finish_block(p, block, rows, packed.value_width);
    }
  }
}

void forward_task(const AttentionKernel& p, int64_t task) {
  const FlushDenormals guard;
  const int64_t parts = task_parts(p), from = task % parts * p.task_queries;
  task /= parts;
  forward(p, task / p.groups, task % p.groups, from, smaller(from + p.task_queries, p.queries));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::window
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::window {

namespace {

HWY_EXPORT(few_task);
HWY_EXPORT(few_part_task);
HWY_EXPORT(few_join_task);
HWY_EXPORT(forward_task);
HWY_EXPORT(backward_task);

struct Backward {
  AttentionKernel attention;
  const AttentionGradients* gradients;
};

constexpr int64_t kFewestQueries = 256, kTasksAThread = 4;

int64_t streams_of(const AttentionKernel& call) { return call.batch * call.groups; }
int64_t tasks_of(const AttentionKernel& call) { return streams_of(call) * task_parts(call); }

// Keys that a query sees, on average.
int64_t mean_visible(const AttentionKernel& call) {
  int64_t all = 0;
  for (int64_t t = 0; t < call.queries; ++t) all += std::max<int64_t>(0, call.end[t] - call.begin[t]);
  return call.queries > 0 ? all / call.queries : 0;
}

// Returns the queries per task. There are several tasks per thread, but a task has at least as many queries as a query
// sees keys, as long as one task per thread remains: keys that two tasks both see are computed by both. Returns all
// queries if there are enough groups anyway, or if a gradient of row_max is given: it goes to one key of a row, so tasks
// would depend on each other.
int64_t queries_of_a_gradient_task(const AttentionKernel& call, const AttentionGradients& gradients, int64_t threads) {
  using kernels::divided;
  const int64_t tiles = std::max<int64_t>(1, divided(call.queries, kTile)), streams = streams_of(call);
  const bool pays = kernels::pays_over_time(streams, call.queries, threads, 1.75);
  if (gradients.grad_row_max || !pays) return tiles * kTile;
  const auto queries_of = [&](int64_t tasks) { return divided(tiles, divided(tasks, streams)) * kTile; };
  const int64_t seen = divided(mean_visible(call), kTile) * kTile;
  return std::max({queries_of(kTasksAThread * threads), kFewestQueries, std::min(seen, queries_of(threads))});
}

}  // namespace

void run_forward(const AttentionKernel& attention, const kernels::Parallel& parallel) {
  // A task packs the keys that it needs for itself, which is cheap with many queries; but the tasks of a few heads must
  // occupy all threads. Sums follow a fixed grid of tiles, so they do not depend on the tasks.
  constexpr int64_t kMostQueries = 2048;
  AttentionKernel call = attention;
  call.task_queries = kMostQueries;
  while (call.task_queries > kFewestQueries && tasks_of(call) < kTasksAThread * parallel.threads)
    call.task_queries /= 2;
  kernels::run_tasks(call, tasks_of(call), parallel, &HWY_DYNAMIC_DISPATCH(forward_task));
}

void run_few(const AttentionKernel& attention, const kernels::Parallel& parallel) {
  const int64_t parts = few_parts(attention), rows = attention.batch * attention.queries * attention.heads;
  if (parts < 2) {
    return kernels::run_tasks(attention, attention.batch * attention.groups, parallel, &HWY_DYNAMIC_DISPATCH(few_task));
  }
  AttentionKernel call = attention;
  call.parts =
      static_cast<float*>(aligned_alloc(64, static_cast<size_t>(parts * rows * few_row(call)) * sizeof(float)));
  if (!call.parts) abort();
  kernels::run_tasks(call, call.batch * parts, parallel, &HWY_DYNAMIC_DISPATCH(few_part_task));
  for (int64_t i = 0; i < rows; ++i) HWY_DYNAMIC_DISPATCH(few_join_task)(call, i);
  free(call.parts);
}

void run_backward(const AttentionKernel& attention, const AttentionGradients& gradients,
                  const kernels::Parallel& parallel) {
  const auto task = [](const Backward& call, int64_t i) {
    HWY_DYNAMIC_DISPATCH(backward_task)(call.attention, *call.gradients, i);
  };
  Backward call{attention, &gradients};
  call.attention.task_queries = queries_of_a_gradient_task(attention, gradients, parallel.threads);
  kernels::run_tasks(call, tasks_of(call.attention), parallel, task);
}

}  // namespace cortado::window
#endif
