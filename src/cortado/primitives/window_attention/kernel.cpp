// Blocks of 64 queries against tiles of 64 keys; README.md, "The kernel". Compiled once for each instruction set.
#include "cortado/primitives/window_attention/kernel.h"

#include <math.h>
#include <stdlib.h>

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/primitives/window_attention/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/products-inl.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/transpose-inl.h"
#include "cortado/primitives/window_attention/few-inl.h"
#include "cortado/primitives/window_attention/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::window {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// Both on fixed grids, so that a query's sums are taken in the same order whatever the tasks and threads.
constexpr int64_t kTile = 64;
// Rows that a product takes at once, whatever its columns.
constexpr int64_t kStrip = 2 * kTileRows;
// The keys of the tiles that queries [from, to) see.
Range visible_tiles(const AttentionKernel& p, int64_t b, int64_t from, int64_t to) {
  Range keys{0, 0};
  for (int64_t t = from; t < to; ++t) keys.add(visible(p, b, t));
  return {keys.begin / kTile * kTile, round_up(keys.end, kTile)};
}

// Up to 64 consecutive queries of one head; `rows` = count rounded up to what a product takes.
struct Block {
  int64_t b, head, query, count, rows;
  Range keys[kTile];  // what each sees; those beyond count see nothing
  Range tiles;

  // Columns of the tile that begins at key `first`.
  Range columns(int64_t row, int64_t first) const {
    return {larger(keys[row].begin - first, 0), smaller(keys[row].end - first, kTile)};
  }
  // Those that any of kStrip rows sees, in whole vectors.
  Range strip(int64_t row, int64_t first) const {
    Range all{0, 0};
    for (int64_t i = row; i < row + kStrip; ++i) all.add(columns(i, first));
    return {all.begin / kLanes * kLanes, round_up(all.end, kLanes)};
  }
  // The rows that see any of kStrip keys from `key` on.
  Range seeing(int64_t key) const {
    Range all{0, 0};
    for (int64_t i = 0; i < count; ++i) {
      if (!keys[i].empty() && keys[i].begin < key + kStrip && keys[i].end > key) all.add({i, i + 1});
    }
    return all;
  }
};

Block make_block(const AttentionKernel& p, int64_t b, int64_t head, int64_t query, int64_t last) {
  Block block{b, head, query, smaller(kTile, last - query), 0, {}, {}};
  block.rows = round_up(block.count, kStrip);
  for (int64_t i = 0; i < block.count; ++i) block.keys[i] = visible(p, b, query + i);
  block.tiles = visible_tiles(p, b, query, query + block.count);
  return block;
}

// --- Keys and values of one key head in float32, in the forms that the products want. ---

void read_rows(const Timed& x, int64_t b, int64_t head, int64_t first, int64_t count, int64_t last, int64_t size,
               float factor, float* to, int64_t width) {
  for (int64_t i = 0; i < count; i += kTokens) {
    const int64_t tokens = larger(0, smaller(kTokens, last - first - i));
    read_tile(x, {b, head, first + i, 1, tokens}, 0, size, factor, to + i * width, width);
  }
}

void write_rows(const float* from, int64_t width, const Timed& x, int64_t b, int64_t head, int64_t first, int64_t count,
                int64_t size) {
  for (int64_t i = 0; i < count; i += kTokens) {
    write_tile(from + i * width, width, x, {b, head, first + i, 1, smaller(kTokens, count - i)}, 0, size);
  }
}

struct Packed {
  int64_t key_width, value_width;  // padded to whole vectors
  Range span;                      // of keys, on the tiles' grid; what lies beyond the last key is zero
  float *values, *turned_keys;     // [tiles · 64, value_width]; [tiles, K, 64]
  float *keys, *turned_values;     // backward only
  int64_t tile(int64_t key) const { return (key - span.begin) / kTile; }
};

Packed pack(const AttentionKernel& p, int64_t b, int64_t group, Range span, bool backward, Scratch& scratch) {
  Packed packed{round_up(p.key_size, kLanes), round_up(p.value_size, kLanes), span, {}, {}, {}, {}};
  packed.values = scratch.take(span.size() * packed.value_width);
  packed.turned_keys = scratch.take(span.size() * p.key_size);
  packed.keys = scratch.take((backward ? span.size() : kTile) * packed.key_width);
  packed.turned_values = scratch.take(backward ? span.size() * p.value_size : 0);
  read_rows(p.v, b, group, span.begin, span.size(), p.keys, p.value_size, 1, packed.values, packed.value_width);
  for (int64_t key = 0; key < span.size(); key += kTile) {
    float* rows = packed.keys + (backward ? key * packed.key_width : 0);
    read_rows(p.k, b, group, span.begin + key, kTile, p.keys, p.key_size, 1, rows, packed.key_width);
    transpose<kTile>(rows, packed.key_width, p.key_size, packed.turned_keys + key * p.key_size);
    if (!backward) continue;
    transpose<kTile>(packed.values + key * packed.value_width, packed.value_width, p.value_size,
                     packed.turned_values + key * p.value_size);
  }
  return packed;
}

// --- Scores. ---

// Columns of kStrip rows of a [64, 64] tile: rows · turned.
void score(const float* rows, int64_t width, int64_t size, const float* turned, Range columns, float* scores) {
  multiply<Start::kZero>({.a = {rows, width},
                          .b = {turned + columns.begin, kTile},
                          .out = scores + columns.begin,
                          .out_row = kTile,
                          .rows = kStrip,
                          .columns = columns.size(),
                          .depth = size});
}

// out [rows, columns] += a b
void accumulate(const Matrix& a, const float* b, int64_t rows, int64_t depth, int64_t columns, float* out) {
  multiply<Start::kAdd>({.a = a,
                         .b = {b, columns},
                         .out = out,
                         .out_row = columns,
                         .rows = rows,
                         .columns = columns,
                         .depth = depth,
                         .from = {out, columns}});
}

// The lanes of the vector at column j that lie in the row's range.
HWY_INLINE auto lanes_in(Range row, int64_t j) {
  const hn::RebindToSigned<Floats> d32;
  const auto column = hn::Add(hn::Iota(d32, 0), hn::Set(d32, static_cast<int32_t>(j)));
  return hn::RebindMask(Floats(), hn::AndNot(hn::Lt(column, hn::Set(d32, static_cast<int32_t>(row.begin))),
                                             hn::Lt(column, hn::Set(d32, static_cast<int32_t>(row.end)))));
}

// What the rows of a block have gathered so far: o, not yet divided, and maximum and denominator.
struct Gathered {
  float maximum[kTile], sum[kTile];
  float* o;  // [64, value_width]
};

void scale_row(float* row, int64_t width, float factor) {
  const Floats d;
  for (int64_t j = 0; j < width; j += kLanes) hn::Store(hn::Mul(hn::Load(d, row + j), hn::Set(d, factor)), d, row + j);
}

void cap_row(float* scores, Range strip, float softcap) {
  const Floats d;
  for (int64_t j = strip.begin; j < strip.end; j += kLanes) {
    hn::Store(hn::Mul(hn::Set(d, softcap), tanh_of(d, hn::Load(d, scores + j))), d, scores + j);
  }
}

// One row of scores becomes exp(s - maximum), 0 where it does not see; o and sum are brought to the new maximum.
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

void clear_row(float* scores, Range strip) {
  if (!strip.empty()) fill(scores + strip.begin, strip.size(), 0);
}

// --- Forward. ---

// The tile that begins at `key` into kStrip rows from `first` on.
void gather_strip(const AttentionKernel& p, const Packed& packed, const Block& block, int64_t key, int64_t first,
                  const float* q, float* scores, Gathered& rows) {
  const Range strip = block.strip(first, key);
  if (strip.empty()) return;
  const int64_t tile = packed.tile(key), width = packed.value_width;
  score(q + first * packed.key_width, packed.key_width, p.key_size, packed.turned_keys + tile * kTile * p.key_size,
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
  write_rows(rows.o, width, p.o, block.b, block.head, block.query, block.count, p.value_size);
}

// Queries [from, to) of all heads of one group.
void forward(const AttentionKernel& p, int64_t b, int64_t group, int64_t from, int64_t to) {
  Scratch scratch;
  const Packed packed = pack(p, b, group, visible_tiles(p, b, from, to), false, scratch);
  float *q = scratch.take(kTile * packed.key_width), *scores = scratch.take(kStrip * kTile);
  Gathered rows;
  rows.o = scratch.take(kTile * packed.value_width);
  const int64_t repeat = p.heads / p.groups;
  for (int64_t head = group * repeat; head < (group + 1) * repeat; ++head) {
    for (int64_t query = from; query < to; query += kTile) {
      const Block block = make_block(p, b, head, query, to);
      read_rows(p.q, b, head, query, block.rows, to, p.key_size, query_factor(p), q, packed.key_width);
      fill(rows.o, kTile * packed.value_width, 0);
      for (int64_t i = 0; i < kTile; ++i) {
        rows.maximum[i] = kMinusInfinity;
        rows.sum[i] = 0;
      }
      for (int64_t key = block.tiles.begin; key < block.tiles.end; key += kTile) {
        for (int64_t i = 0; i < block.rows; i += kStrip) gather_strip(p, packed, block, key, i, q, scores, rows);
      }
      finish_block(p, block, rows, packed.value_width);
    }
  }
}

// --- Backward. ---

// One block's rows: q, do/l, the gradient of q, and a number each of max, δ and the gradient of the maximum.
struct Differentiated {
  float *q, *grad_o, *grad_q, *o;
  float maximum[kTile], delta[kTile], grad_max[kTile];
  float *weights, *grads;          // tiles [64, 64]: P and ds
  float *key_grads, *value_grads;  // of all keys
};

float dot(const float* a, const float* b, int64_t width) {
  const Floats d;
  Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < width; j += kLanes) sum = hn::MulAdd(hn::Load(d, a + j), hn::Load(d, b + j), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void read_block(const AttentionKernel& p, const AttentionGradients& g, const Packed& packed, const Block& block,
                Differentiated& rows) {
  const int64_t width = packed.value_width, last = block.query + block.count;
  read_rows(p.q, block.b, block.head, block.query, block.rows, last, p.key_size, query_factor(p), rows.q,
            packed.key_width);
  read_rows(g.grad_o, block.b, block.head, block.query, block.rows, last, p.value_size, 1, rows.grad_o, width);
  read_rows(p.o, block.b, block.head, block.query, block.rows, last, p.value_size, 1, rows.o, width);
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t row = (block.b * p.queries + block.query + i) * p.heads + block.head;
    const float inverse = 1 / p.denominator[row];
    const float grad_lse = g.grad_lse ? g.grad_lse[row] : 0;
    rows.delta[i] = (dot(rows.grad_o + i * width, rows.o + i * width, width) - grad_lse) * inverse;
    rows.maximum[i] = p.row_max[row];
    rows.grad_max[i] = g.grad_row_max ? g.grad_row_max[row] : 0;
    scale_row(rows.grad_o + i * width, width, inverse);
  }
  fill(rows.grad_q, kTile * packed.key_width, 0);
}

// The first key that attains the maximum takes the maximum's gradient.
HWY_INLINE Vec grad_of_maximum(Vec s, hn::Mask<Floats> seen, float maximum, float& grad_max) {
  const Floats d;
  const intptr_t first = hn::FindFirstTrue(d, hn::And(seen, hn::Eq(s, hn::Set(d, maximum))));
  if (first < 0) return hn::Zero(d);
  const Vec grad =
      hn::IfThenElseZero(hn::Eq(hn::Iota(d, 0), hn::Set(d, static_cast<float>(first))), hn::Set(d, grad_max));
  grad_max = 0;
  return grad;
}

// In place: scores to weights exp(s - max), do·v to ds = P (do'·v - δ), with a cap times 1 - (s/c)².
void differentiate_row(float softcap, float* scores, float* grads, Range strip, Range row, float maximum, float delta,
                       float& grad_max) {
  const Floats d;
  for (int64_t j = strip.begin; j < strip.end; j += kLanes) {
    const auto seen = lanes_in(row, j);
    Vec s = hn::Load(d, scores + j), slope = hn::Set(d, 1.0f);
    if (softcap > 0) {
      const Vec turned = tanh_of(d, s);
      slope = hn::Mul(hn::Set(d, softcap), hn::NegMulAdd(turned, turned, slope));
      s = hn::Mul(hn::Set(d, softcap), turned);
    }
    const Vec weight = hn::IfThenElseZero(seen, exp_of(d, hn::Sub(s, hn::Set(d, maximum))));
    Vec grad = hn::Mul(weight, hn::Sub(hn::Load(d, grads + j), hn::Set(d, delta)));
    if (grad_max != 0) grad = hn::Add(grad, grad_of_maximum(s, seen, maximum, grad_max));
    hn::Store(weight, d, scores + j);
    hn::Store(hn::IfThenElseZero(seen, hn::Mul(grad, slope)), d, grads + j);
  }
}

// P and ds of kStrip rows from `first` on against the tile at `key`; dq += ds k.
void differentiate_strip(const AttentionKernel& p, const Packed& packed, const Block& block, int64_t key, int64_t first,
                         Differentiated& rows) {
  const Range strip = block.strip(first, key);
  if (strip.empty()) return;
  const int64_t tile = packed.tile(key) * kTile, kw = packed.key_width, vw = packed.value_width;
  float *scores = rows.weights + first * kTile, *grads = rows.grads + first * kTile;
  score(rows.q + first * kw, kw, p.key_size, packed.turned_keys + tile * p.key_size, strip, scores);
  score(rows.grad_o + first * vw, vw, p.value_size, packed.turned_values + tile * p.value_size, strip, grads);
  for (int64_t i = 0; i < kStrip; ++i) {
    const Range row = block.columns(first + i, key);
    if (row.empty()) {
      clear_row(scores + i * kTile, strip);
      clear_row(grads + i * kTile, strip);
      continue;
    }
    const int64_t r = first + i;
    differentiate_row(p.softcap, scores + i * kTile, grads + i * kTile, strip, row, rows.maximum[r], rows.delta[r],
                      rows.grad_max[r]);
  }
  accumulate({grads + strip.begin, kTile}, packed.keys + (tile + strip.begin) * kw, kStrip, strip.size(), kw,
             rows.grad_q + first * kw);
}

// dv += Pᵀ do', dk += dsᵀ q of the tile at `key`.
void differentiate_tile(const AttentionKernel& p, const Packed& packed, const Block& block, int64_t key,
                        Differentiated& rows) {
  fill(rows.weights, kTile * kTile, 0);
  fill(rows.grads, kTile * kTile, 0);
  for (int64_t i = 0; i < block.rows; i += kStrip) differentiate_strip(p, packed, block, key, i, rows);
  const int64_t kw = packed.key_width, vw = packed.value_width;
  for (int64_t column = 0; column < kTile; column += kStrip) {
    const Range seeing = block.seeing(key + column);
    if (seeing.empty()) continue;
    const int64_t at = seeing.begin * kTile + column, to = packed.tile(key) * kTile + column;
    accumulate(Matrix{rows.weights + at, kTile}.transposed(), rows.grad_o + seeing.begin * vw, kStrip, seeing.size(),
               vw, rows.value_grads + to * vw);
    accumulate(Matrix{rows.grads + at, kTile}.transposed(), rows.q + seeing.begin * kw, kStrip, seeing.size(), kw,
               rows.key_grads + to * kw);
  }
}

Differentiated make_rows(const Packed& packed, Scratch& scratch) {
  const int64_t kw = packed.key_width, vw = packed.value_width, keys = packed.span.size();
  Differentiated rows{};
  rows.q = scratch.take(kTile * kw);
  rows.grad_q = scratch.take(kTile * kw);
  rows.grad_o = scratch.take(kTile * vw);
  rows.o = scratch.take(kTile * vw);
  rows.weights = scratch.take(kTile * kTile);
  rows.grads = scratch.take(kTile * kTile);
  rows.key_grads = scratch.take(keys * kw);
  rows.value_grads = scratch.take(keys * vw);
  fill(rows.key_grads, keys * kw, 0);
  fill(rows.value_grads, keys * vw, 0);
  return rows;
}

// All queries of one group: its keys' gradients are sums over them.
void backward(const AttentionKernel& p, const AttentionGradients& g, int64_t b, int64_t group) {
  Scratch scratch;
  const Packed packed = pack(p, b, group, {0, round_up(p.keys, kTile)}, true, scratch);
  Differentiated rows = make_rows(packed, scratch);
  const int64_t repeat = p.heads / p.groups;
  for (int64_t head = group * repeat; head < (group + 1) * repeat; ++head) {
    for (int64_t query = 0; query < p.queries; query += kTile) {
      const Block block = make_block(p, b, head, query, p.queries);
      read_block(p, g, packed, block, rows);
      for (int64_t key = block.tiles.begin; key < block.tiles.end; key += kTile)
        differentiate_tile(p, packed, block, key, rows);
      scale_row(rows.grad_q, kTile * packed.key_width, query_factor(p));
      write_rows(rows.grad_q, packed.key_width, g.grad_q, b, head, query, block.count, p.key_size);
    }
  }
  write_rows(rows.key_grads, packed.key_width, g.grad_k, b, group, 0, p.keys, p.key_size);
  write_rows(rows.value_grads, packed.value_width, g.grad_v, b, group, 0, p.keys, p.value_size);
}

void forward_task(const AttentionKernel& p, int64_t task) {
  const FlushDenormals guard;
  const int64_t parts = (p.queries + p.task_queries - 1) / p.task_queries, from = task % parts * p.task_queries;
  task /= parts;
  forward(p, task / p.groups, task % p.groups, from, smaller(from + p.task_queries, p.queries));
}

void backward_task(const AttentionKernel& p, const AttentionGradients& g, int64_t task) {
  const FlushDenormals guard;
  backward(p, g, task / p.groups, task % p.groups);
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
  const AttentionKernel* attention;
  const AttentionGradients* gradients;
};

}  // namespace

void run_forward(const AttentionKernel& attention, const kernels::Parallel& parallel) {
  // A task packs the keys it needs for itself, which many queries make cheap; but a few heads' tasks must be enough for
  // all threads. Sums are taken on a grid of tiles, the same in any task.
  constexpr int64_t kMostQueries = 2048, kFewestQueries = 256, kTasksAThread = 4;
  AttentionKernel call = attention;
  const auto tasks = [&] {
    return call.batch * call.groups * ((call.queries + call.task_queries - 1) / call.task_queries);
  };
  call.task_queries = kMostQueries;
  while (call.task_queries > kFewestQueries && tasks() < kTasksAThread * parallel.threads) call.task_queries /= 2;
  kernels::run_tasks(call, tasks(), parallel, &HWY_DYNAMIC_DISPATCH(forward_task));
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
    HWY_DYNAMIC_DISPATCH(backward_task)(*call.attention, *call.gradients, i);
  };
  kernels::run_tasks(Backward{&attention, &gradients}, attention.batch * attention.groups, parallel, task);
}

}  // namespace cortado::window
#endif
