// Blocks of queries and tiles of keys, laid out for the matrix products. Part of kernel.cpp, compiled once per
// instruction set (hence the unusual guard).
#if defined(CORTADO_WINDOW_ATTENTION_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_WINDOW_ATTENTION_TILE_INL_H
#undef CORTADO_WINDOW_ATTENTION_TILE_INL_H
#else
#define CORTADO_WINDOW_ATTENTION_TILE_INL_H
#endif

#include "cortado/primitives/kernels/products-inl.h"
#include "cortado/primitives/kernels/transpose-inl.h"
#include "cortado/primitives/window_attention/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::window {
namespace HWY_NAMESPACE {
namespace {

// Rows that a product computes at once, for any number of columns.
constexpr int64_t kStrip = 2 * kTileRows;
// The keys of the tiles that queries [from, to) see.
Range visible_tiles(const AttentionKernel& p, int64_t b, int64_t from, int64_t to) {
  Range keys{0, 0};
  for (int64_t t = from; t < to; ++t) keys.add(visible(p, b, t));
  return {keys.begin / kTile * kTile, round_up(keys.end, kTile)};
}

// Consecutive tokens of one head of batch row b.
struct HeadTokens {
  int64_t b, head, first, count;
};

// Up to 64 consecutive queries of one head; `rows`: count rounded up to a multiple of kStrip.
struct Block {
  int64_t b, head, query, count, rows;
  Range keys[kTile];  // visible keys per query; rows beyond count see none
  Range tiles;

  HeadTokens tokens() const { return {b, head, query, count}; }
  // The visible columns of the tile that begins at key `first`.
  Range columns(int64_t row, int64_t first) const {
    return {larger(keys[row].begin - first, 0), smaller(keys[row].end - first, kTile)};
  }
  // The columns that any of kStrip rows sees, in whole vectors.
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

// --- Keys and values of one key head in float32, laid out for the products. ---

// Fills `rows` rows, `width` apart: the tokens' channels times `factor`, then zeros.
void read_rows(const Timed& x, const HeadTokens& tokens, int64_t size, float factor, int64_t rows, float* to,
               int64_t width) {
  for (int64_t i = 0; i < rows; i += kTokens) {
    const int64_t count = larger(0, smaller(kTokens, tokens.count - i));
    read_tile(x, {tokens.b, tokens.head, tokens.first + i, 1, count}, 0, size, factor, to + i * width, width);
  }
}

void write_rows(const float* from, int64_t width, const Timed& x, const HeadTokens& tokens, int64_t size) {
  for (int64_t i = 0; i < tokens.count; i += kTokens) {
    const int64_t count = smaller(kTokens, tokens.count - i);
    write_tile(from + i * width, width, x, {tokens.b, tokens.head, tokens.first + i, 1, count}, 0, size);
  }
}

struct Packed {
  int64_t key_width, value_width;  // padded to whole vectors
  Range span;                      // of keys, on the tiles' grid; zero beyond the last key
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
  const auto from = [&](int64_t key) { return HeadTokens{b, group, key, p.keys - key}; };
  read_rows(p.v, from(span.begin), p.value_size, 1, span.size(), packed.values, packed.value_width);
  for (int64_t key = 0; key < span.size(); key += kTile) {
    float* rows = packed.keys + (backward ? key * packed.key_width : 0);
    read_rows(p.k, from(span.begin + key), p.key_size, 1, kTile, rows, packed.key_width);
    transpose<kTile>(rows, packed.key_width, p.key_size, packed.turned_keys + key * p.key_size);
    if (!backward) continue;
    transpose<kTile>(packed.values + key * packed.value_width, packed.value_width, p.value_size,
                     packed.turned_values + key * p.value_size);
  }
  return packed;
}

// --- Scores. ---

// Scores of kStrip rows of a [64, 64] tile in `columns`: rows · turned.
void score(const float* rows, int64_t width, int64_t size, const float* turned, Range columns, float* scores) {
  multiply<Start::kZero>({.a = {rows, width},
                          .b = {turned + columns.begin, kTile},
                          .out = scores + columns.begin,
                          .out_row = kTile,
                          .rows = kStrip,
                          .columns = columns.size(),
                          .depth = size});
}

// out [rows, columns] += a b.
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

// Mask of the lanes of the vector at column j that are in the row's range.
HWY_INLINE auto lanes_in(Range row, int64_t j) {
  const hn::RebindToSigned<Floats> d32;
  const auto column = hn::Add(hn::Iota(d32, 0), hn::Set(d32, static_cast<int32_t>(j)));
  return hn::RebindMask(Floats(), hn::AndNot(hn::Lt(column, hn::Set(d32, static_cast<int32_t>(row.begin))),
                                             hn::Lt(column, hn::Set(d32, static_cast<int32_t>(row.end)))));
}

void scale_row(float* row, int64_t width, float factor) {
  const Floats d;
  for (int64_t j = 0; j < width; j += kLanes) hn::Store(hn::Mul(hn::Load(d, row + j), hn::Set(d, factor)), d, row + j);
}

void clear_row(float* scores, Range strip) {
  if (!strip.empty()) fill(scores + strip.begin, strip.size(), 0);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::window
HWY_AFTER_NAMESPACE();

#endif
