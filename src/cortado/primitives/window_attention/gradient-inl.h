// The gradients: visits every pair of a block of queries and a tile of keys a second time. Part of kernel.cpp, compiled
// once per instruction set (hence the unusual guard).
#if defined(CORTADO_WINDOW_ATTENTION_GRADIENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_WINDOW_ATTENTION_GRADIENT_INL_H
#undef CORTADO_WINDOW_ATTENTION_GRADIENT_INL_H
#else
#define CORTADO_WINDOW_ATTENTION_GRADIENT_INL_H
#endif

#include "cortado/primitives/window_attention/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::window {
namespace HWY_NAMESPACE {
namespace {

// The queries and keys of a group whose gradients a task computes, on the tiles' grid. The task visits all pairs of
// either, so every sum is computed by one task, in the order of a single task.
struct Share {
  Range queries, keys;
};

// Shares of task_queries queries; the last query sees the last key.
Share share_of(const AttentionKernel& p, int64_t part) {
  const int64_t all = round_up(p.keys, kTile), first = part * p.task_queries, last = first + p.task_queries;
  const auto key_of = [&](int64_t query) {
    return larger(0, smaller((query + p.keys - p.queries) / kTile * kTile, all));
  };
  return {{first, smaller(last, p.queries)}, {part == 0 ? 0 : key_of(first), last < p.queries ? key_of(last) : all}};
}

// From the first to the last query that the task owns or that sees one of its keys, on the tiles' grid.
Range queries_of(const AttentionKernel& p, int64_t b, const Share& own) {
  Range queries = own.queries;
  for (int64_t t = 0; t < p.queries; ++t) {
    if (!common(visible(p, b, t), own.keys).empty()) queries.add({t, t + 1});
  }
  return {queries.begin / kTile * kTile, queries.end};
}

// One block's rows: q, do/l, the gradient of q; and per row the maximum, δ and the gradient of the maximum.
struct Differentiated {
  float *q, *grad_o, *grad_q, *o;
  float maximum[kTile], delta[kTile], grad_max[kTile];
  float *weights, *grads;          // tiles [64, 64]: P and ds
  float *key_grads, *value_grads;  // of the task's own keys
};

float dot(const float* a, const float* b, int64_t width) {
  const Floats d;
  Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < width; j += kLanes) sum = hn::MulAdd(hn::Load(d, a + j), hn::Load(d, b + j), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void read_block(const AttentionKernel& p, const AttentionGradients& g, const Packed& packed, const Block& block,
                Differentiated& rows) {
  const int64_t width = packed.value_width;
  const HeadTokens tokens = block.tokens();
  read_rows(p.q, tokens, p.key_size, query_factor(p), block.rows, rows.q, packed.key_width);
  read_rows(g.grad_o, tokens, p.value_size, 1, block.rows, rows.grad_o, width);
  read_rows(p.o, tokens, p.value_size, 1, block.rows, rows.o, width);
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

// The gradient of the maximum goes to the first key that attains it.
HWY_INLINE Vec grad_of_maximum(Vec s, hn::Mask<Floats> seen, float maximum, float& grad_max) {
  const Floats d;
  const intptr_t first = hn::FindFirstTrue(d, hn::And(seen, hn::Eq(s, hn::Set(d, maximum))));
  if (first < 0) return hn::Zero(d);
  const Vec grad =
      hn::IfThenElseZero(hn::Eq(hn::Iota(d, 0), hn::Set(d, static_cast<float>(first))), hn::Set(d, grad_max));
  grad_max = 0;
  return grad;
}

// In place, for row r of the block, which sees the columns `seen_by_row`: scores become weights exp(s - max), do·v
// becomes ds = P (do'·v - δ), with a cap times 1 - (s/c)².
void differentiate_row(float softcap, float* scores, float* grads, Range strip, Range seen_by_row, int64_t r,
                       Differentiated& rows) {
  const Floats d;
  const Vec maximum = hn::Set(d, rows.maximum[r]), delta = hn::Set(d, rows.delta[r]);
  float& grad_max = rows.grad_max[r];
  for (int64_t j = strip.begin; j < strip.end; j += kLanes) {
    const auto seen = lanes_in(seen_by_row, j);
    Vec s = hn::Load(d, scores + j), slope = hn::Set(d, 1.0f);
    if (softcap > 0) {
      const Vec turned = tanh_of(d, s);
      slope = hn::Mul(hn::Set(d, softcap), hn::NegMulAdd(turned, turned, slope));
      s = hn::Mul(hn::Set(d, softcap), turned);
    }
    const Vec weight = hn::IfThenElseZero(seen, exp_of(d, hn::Sub(s, maximum)));
    Vec grad = hn::Mul(weight, hn::Sub(hn::Load(d, grads + j), delta));
    if (grad_max != 0) grad = hn::Add(grad, grad_of_maximum(s, seen, rows.maximum[r], grad_max));
    hn::Store(weight, d, scores + j);
    hn::Store(hn::IfThenElseZero(seen, hn::Mul(grad, slope)), d, grads + j);
  }
}

// P and ds of kStrip rows from `first` on against the tile at `key`; for the task's own queries dq += ds k.
void differentiate_strip(const AttentionKernel& p, const Packed& packed, const Block& block, int64_t key, int64_t first,
                         bool own_queries, Differentiated& rows) {
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
    differentiate_row(p.softcap, scores + i * kTile, grads + i * kTile, strip, row, first + i, rows);
  }
  if (!own_queries) return;
  accumulate({grads + strip.begin, kTile}, packed.keys + (tile + strip.begin) * kw, kStrip, strip.size(), kw,
             rows.grad_q + first * kw);
}

// dv += Pᵀ do', dk += dsᵀ q for the tile at `key`, if the task owns it.
void differentiate_tile(const AttentionKernel& p, const Packed& packed, const Block& block, int64_t key,
                        const Share& own, Differentiated& rows) {
  fill(rows.weights, kTile * kTile, 0);
  fill(rows.grads, kTile * kTile, 0);
  const bool own_queries = own.queries.has(block.query);
  for (int64_t i = 0; i < block.rows; i += kStrip) differentiate_strip(p, packed, block, key, i, own_queries, rows);
  if (!own.keys.has(key)) return;
  const int64_t kw = packed.key_width, vw = packed.value_width;
  for (int64_t column = 0; column < kTile; column += kStrip) {
    const Range seeing = block.seeing(key + column);
    if (seeing.empty()) continue;
    const int64_t at = seeing.begin * kTile + column, to = key - own.keys.begin + column;
    accumulate(Matrix{rows.weights + at, kTile}.transposed(), rows.grad_o + seeing.begin * vw, kStrip, seeing.size(),
               vw, rows.value_grads + to * vw);
    accumulate(Matrix{rows.grads + at, kTile}.transposed(), rows.q + seeing.begin * kw, kStrip, seeing.size(), kw,
               rows.key_grads + to * kw);
  }
}

Differentiated make_rows(const Packed& packed, int64_t keys, Scratch& scratch) {
  const int64_t kw = packed.key_width, vw = packed.value_width;
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

// A block's pairs with all tiles that it sees or, if its queries are another task's, only with this task's keys.
void differentiate_block(const AttentionKernel& p, const AttentionGradients& g, const Packed& packed,
                         const Block& block, const Share& own, Differentiated& rows) {
  const bool own_queries = own.queries.has(block.query);
  const Range tiles = own_queries ? block.tiles : common(block.tiles, own.keys);
  if (tiles.empty() && !own_queries) return;
  read_block(p, g, packed, block, rows);
  for (int64_t key = tiles.begin; key < tiles.end; key += kTile) differentiate_tile(p, packed, block, key, own, rows);
  if (!own_queries) return;
  scale_row(rows.grad_q, kTile * packed.key_width, query_factor(p));
  write_rows(rows.grad_q, packed.key_width, g.grad_q, block.tokens(), p.key_size);
}

// For one group, because the gradients of keys are sums over all its heads.
void backward(const AttentionKernel& p, const AttentionGradients& g, int64_t b, int64_t group, const Share& own) {
  Scratch scratch;
  Range span = own.keys;
  span.add(visible_tiles(p, b, own.queries.begin, own.queries.end));
  const Packed packed = pack(p, b, group, span, true, scratch);
  Differentiated rows = make_rows(packed, own.keys.size(), scratch);
  const Range queries = queries_of(p, b, own);
  const int64_t repeat = p.heads / p.groups;
  for (int64_t head = group * repeat; head < (group + 1) * repeat; ++head) {
    for (int64_t query = queries.begin; query < queries.end; query += kTile) {
      differentiate_block(p, g, packed, make_block(p, b, head, query, p.queries), own, rows);
    }
  }
  const HeadTokens keys{b, group, own.keys.begin, smaller(own.keys.end, p.keys) - own.keys.begin};
  write_rows(rows.key_grads, packed.key_width, g.grad_k, keys, p.key_size);
  write_rows(rows.value_grads, packed.value_width, g.grad_v, keys, p.value_size);
}

void backward_task(const AttentionKernel& p, const AttentionGradients& g, int64_t task) {
  const FlushDenormals guard;
  const int64_t parts = task_parts(p), stream = task / parts;
  backward(p, g, stream / p.groups, stream % p.groups, share_of(p, task % parts));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::window
HWY_AFTER_NAMESPACE();

#endif
