// Products of small matrices, and the chunked scans' operations built on them: a state [keys, values] and a tile of 16
// tokens. Compiled once per instruction set (hence the unusual guard), everything with internal linkage.
#if defined(CORTADO_KERNELS_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CORTADO_KERNELS_PRODUCTS_INL_H
#undef CORTADO_KERNELS_PRODUCTS_INL_H
#else
#define CORTADO_KERNELS_PRODUCTS_INL_H
#endif

#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::kernels {
namespace HWY_NAMESPACE {
namespace {

enum class Start { kZero, kAdd, kScaled };  // the product is added to nothing, to `from`, or to `from` with scaled rows
enum class Terms {
  kAll,
  kUpToRow,
  kFromRow
};  // terms k of row i: all, or for triangular matrices those k <= i or k >= i

// A matrix: element [i][k] at data[i·row + k·column].
struct Matrix {
  const float* data = nullptr;
  int64_t row = 0, column = 1;

  Matrix transposed() const { return {data, column, row}; }
};

// Contiguous rows of a matrix, `row` apart.
struct Rows {
  const float* data = nullptr;
  int64_t row = 0;
};

// out[i][j] = start + Σ_k a(i,k) b[k][j], i < rows, j < columns, k < depth. rows is a multiple of 16, columns of the
// vector length.
struct Product {
  Matrix a;
  Rows b;
  float* out;
  int64_t out_row;
  int64_t rows, columns, depth;
  Rows from = {};
  const float* scale = nullptr;  // one per row
  Fetcher* fetcher = nullptr;    // prefetches during the product
};

template <Start kStart, int kRows, int kVecs>
HWY_INLINE void product_tile(const Product& p, int64_t i, int64_t j, int64_t k, int64_t end) {
  const Floats d;
  const int64_t a_row = p.a.row, a_column = p.a.column, b_row = p.b.row, out_row = p.out_row, from_row = p.from.row;
  const float* const from = kStart == Start::kZero ? nullptr : p.from.data + i * from_row + j;
  float* const out = p.out + i * out_row + j;
  Vec sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) sum[r][c] = hn::Zero(d);
  }
  const float* a = p.a.data + i * a_row + k * a_column;
  const float* b = p.b.data + k * b_row + j;
  for (; k < end; ++k, a += a_column, b += b_row) {
    Vec columns[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) columns[c] = hn::Load(d, b + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = hn::Set(d, a[r * a_row]);
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) sum[r][c] = hn::MulAdd(factor, columns[c], sum[r][c]);
    }
  }
  // Added last, so that a state is rounded once per tile instead of once per token.
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) {
      const int64_t before = r * from_row + c * kLanes;
      if constexpr (kStart == Start::kAdd) sum[r][c] = hn::Add(sum[r][c], hn::Load(d, from + before));
      if constexpr (kStart == Start::kScaled) {
        sum[r][c] = hn::MulAdd(hn::Set(d, p.scale[i + r]), hn::Load(d, from + before), sum[r][c]);
      }
      hn::Store(sum[r][c], d, out + r * out_row + c * kLanes);
    }
  }
}

// Computes the rows kRows at a time, for the columns from `from` on, kVecs vectors at a time while enough remain.
// Returns the first remaining column.
template <Start kStart, Terms kTerms, int kRows, int kVecs>
HWY_INLINE int64_t multiply_columns(const Product& p, int64_t from) {
  const int64_t count = (p.columns - from) / (kVecs * kLanes);
  for (int64_t i = 0; i < p.rows; i += kRows) {
    const int64_t begin = kTerms == Terms::kFromRow ? i : 0;
    const int64_t end = kTerms == Terms::kUpToRow ? i + kRows : p.depth;
    for (int64_t j = 0; j < count; ++j) {
      product_tile<kStart, kRows, kVecs>(p, i, from + j * kVecs * kLanes, begin, end);
      if (p.fetcher) p.fetcher->fetch(p.fetcher->pace);
    }
  }
  return from + count * kVecs * kLanes;
}

template <Start kStart, Terms kTerms = Terms::kAll>
HWY_NOINLINE void multiply(const Product& p) {
  int64_t left = 0;
  if constexpr (kTileRows == 8) left = multiply_columns<kStart, kTerms, 4, 4>(p, left);
  left = multiply_columns<kStart, kTerms, kTileRows, 2>(p, left);
  multiply_columns<kStart, kTerms, 2 * kTileRows, 1>(p, left);
}

// --- Many rows times one matrix. ---

// A matrix [depth, columns] with every row padded to whole vectors.
struct PaddedMatrix {
  float* data;
  int64_t depth, columns;

  int64_t width() const { return round_up(columns, kLanes); }
  // Copies a contiguous matrix.
  void read(const float* matrix) const {
    for (int64_t i = 0; i < depth; ++i) read_row(matrix + i * columns, 1, columns, 1.0f, data + i * width(), width());
  }
};

// Multiplies rows [first, end) of some x [.., depth] by a matrix, in tiles. read(row, count, tile, width) fills a tile's
// first rows, `width` apart, with `count` rows of x from `row` on; body(row, product) gets each result row.
template <class Read, class Body>
HWY_INLINE void for_products(int64_t first, int64_t end, const PaddedMatrix& matrix, Scratch& scratch, const Read& read,
                             const Body& body) {
  const int64_t width = matrix.width(), padded = round_up(matrix.depth, kLanes);
  float *tile = scratch.take(kTokens * padded), *to = scratch.take(kTokens * width);
  fill(tile, kTokens * padded, 0);
  for (; first < end; first += kTokens) {
    const int64_t count = end - first < kTokens ? end - first : kTokens;
    read(first, count, tile, padded);
    multiply<Start::kZero>({.a = {tile, padded},
                            .b = {matrix.data, width},
                            .out = to,
                            .out_row = width,
                            .rows = kTokens,
                            .columns = width,
                            .depth = matrix.depth});
    for (int64_t i = 0; i < count; ++i) body(first + i, to + i * width);
  }
}

// --- Transposition of tiles, by interleaving four rows twice. `spare`: memory for a tile. ---

// [kTokens, width] -> [width, kTokens]: tokens become a vector's lanes.
HWY_NOINLINE inline void to_token_lanes(const float* from, int64_t width, float* to, float* spare) {
  static_assert(kTokens == 16);
  const Floats d;
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < width; j += kLanes) {
      const float* row = from + i * width + j;
      hn::StoreInterleaved4(hn::Load(d, row), hn::Load(d, row + 4 * width), hn::Load(d, row + 8 * width),
                            hn::Load(d, row + 12 * width), d, spare + 4 * (i * width + j));
    }
  }
  const int64_t part = 4 * width;
  for (int64_t j = 0; j < part; j += kLanes) {
    hn::StoreInterleaved4(hn::Load(d, spare + j), hn::Load(d, spare + part + j), hn::Load(d, spare + 2 * part + j),
                          hn::Load(d, spare + 3 * part + j), d, to + 4 * j);
  }
}

HWY_NOINLINE inline void from_token_lanes(const float* from, int64_t width, float* to, float* spare) {
  const Floats d;
  const int64_t part = 4 * width;
  Vec a, b, c, e;
  for (int64_t j = 0; j < part; j += kLanes) {
    hn::LoadInterleaved4(d, from + 4 * j, a, b, c, e);
    hn::Store(a, d, spare + j);
    hn::Store(b, d, spare + part + j);
    hn::Store(c, d, spare + 2 * part + j);
    hn::Store(e, d, spare + 3 * part + j);
  }
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < width; j += kLanes) {
      float* row = to + i * width + j;
      hn::LoadInterleaved4(d, spare + 4 * (i * width + j), a, b, c, e);
      hn::Store(a, d, row);
      hn::Store(b, d, row + 4 * width);
      hn::Store(c, d, row + 8 * width);
      hn::Store(e, d, row + 12 * width);
    }
  }
}

// --- Products of a scan's tile and its state. ---

// Shared by all products of a scan's tiles. The state is [keys, values], both padded; a tile is [16, keys] or [16,
// values]. A transposed tile has the tokens in its lanes.
struct Tiling {
  int64_t keys = 0, values = 0;
  float *lanes = nullptr, *spare = nullptr;  // a tile [keys, 16]; any tile
  Fetcher* fetcher = nullptr;
};

// A tile's rows [16, width], in place or copied to `tile`.
inline Rows rows_of(const Timed& x, const Stretch& at, int64_t column, int64_t columns, float* tile, int64_t width) {
  const float* in_place = tile_in_place(x, at, column, columns, width);
  if (in_place) return {in_place, at.step * x.token};
  read_tile(x, at, column, columns, 1, tile, width);
  return {tile, width};
}

// pairs [16,16] = a bᵀ for tiles [16, width]; b is given transposed.
inline void pair_products(const Tiling& tiling, const float* a, const float* b_lanes, int64_t width, float* pairs) {
  multiply<Start::kZero>({.a = {a, width},
                          .b = {b_lanes, kTokens},
                          .out = pairs,
                          .out_row = kTokens,
                          .rows = kTokens,
                          .columns = kTokens,
                          .depth = width,
                          .fetcher = tiling.fetcher});
}

// to (kAdd: +)= a lower triangle [16,16] of weights (with kFromRow its transpose) times a tile [16, width].
template <Start kStart, Terms kTerms>
void weigh(const Tiling& tiling, const float* weights, const Rows& tile, int64_t width, float* to, int64_t to_row) {
  static_assert(kTerms != Terms::kAll);
  const Matrix triangle{weights, kTokens};
  multiply<kStart, kTerms>({.a = kTerms == Terms::kFromRow ? triangle.transposed() : triangle,
                            .b = tile,
                            .out = to,
                            .out_row = to_row,
                            .rows = kTokens,
                            .columns = width,
                            .depth = kTokens,
                            .from = {to, to_row},
                            .fetcher = tiling.fetcher});
}

// to [16, values] = from + y S for a tile y [16, keys].
inline void read_by_keys(const Tiling& tiling, const float* y, const float* state, const Rows& from, float* to,
                         int64_t to_row) {
  multiply<Start::kAdd>({.a = {y, tiling.keys},
                         .b = {state, tiling.values},
                         .out = to,
                         .out_row = to_row,
                         .rows = kTokens,
                         .columns = tiling.values,
                         .depth = tiling.keys,
                         .from = from,
                         .fetcher = tiling.fetcher});
}

// Where a tile's results go: columns of x at the tokens `at`. Uses `tile` if they cannot be written in place.
struct TileOutput {
  const Timed& x;
  const Stretch& at;
  int64_t column, columns;
  float* tile;
};

// out = weights v + y S: a tile's tokens read each other and the state before them.
inline void read_tokens(const Tiling& tiling, const float* weights, const Rows& v, const float* y, const float* state,
                        const TileOutput& out) {
  float* in_place = tile_in_place(out.x, out.at, out.column, out.columns, tiling.values);
  float* to = in_place ? in_place : out.tile;
  const int64_t row = in_place ? out.at.step * out.x.token : tiling.values;
  weigh<Start::kZero, Terms::kUpToRow>(tiling, weights, v, tiling.values, to, row);
  read_by_keys(tiling, y, state, {to, row}, to, row);
  if (!in_place) write_tile(to, row, out.x, out.at, out.column, out.columns);
}

// to_t = S values_t, a tile [16, keys]; the values are given transposed.
inline void read_by_values(const Tiling& tiling, const float* state, const float* value_lanes, float* to) {
  multiply<Start::kZero>({.a = {state, tiling.values},
                          .b = {value_lanes, kTokens},
                          .out = tiling.lanes,
                          .out_row = kTokens,
                          .rows = tiling.keys,
                          .columns = kTokens,
                          .depth = tiling.values,
                          .fetcher = tiling.fetcher});
  from_token_lanes(tiling.lanes, tiling.keys, to, tiling.spare);
}

// to = diag(scale) from + keysᵀ values (states), over the tiles' first `tokens` rows.
inline void advance(const Tiling& tiling, const float* keys, const Rows& values, const float* scale, const float* from,
                    float* to, int64_t tokens = kTokens) {
  multiply<Start::kScaled>({.a = Matrix{keys, tiling.keys}.transposed(),
                            .b = values,
                            .out = to,
                            .out_row = tiling.values,
                            .rows = tiling.keys,
                            .columns = tiling.values,
                            .depth = tokens,
                            .from = {from, tiling.values},
                            .scale = scale,
                            .fetcher = tiling.fetcher});
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::kernels
HWY_AFTER_NAMESPACE();

#endif
