// Processes rows in the first-level cache. Compiled once per instruction set.
#include "cortado/mechanisms/lolcats/kernel.h"

#include <math.h>

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/mechanisms/lolcats/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/products-inl.h"
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::lolcats_kernel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// --- A vector times a matrix ---

template <int kVectors>
HWY_INLINE void times_columns(const float* x, const float* matrix, int64_t rows, int64_t width, float* to) {
  const Floats d;
  Vec sum[kVectors];
  for (Vec& one : sum) one = hn::Zero(d);
  for (int64_t row = 0; row < rows; ++row) {
    const Vec factor = hn::Set(d, x[row]);
    for (int i = 0; i < kVectors; ++i) {
      sum[i] = hn::MulAdd(factor, hn::LoadU(d, matrix + row * width + i * kLanes), sum[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[i], d, to + i * kLanes);
}

// xᵀ M for x [rows] and M [rows, width], written to `to` [width]. If the vector length does not divide the width, the
// last columns are computed twice.
HWY_INLINE void times_matrix(const float* x, const float* matrix, int64_t rows, int64_t width, float* to) {
  if (width < kLanes) {
    Vec sum = hn::Zero(Floats());
    for (int64_t row = 0; row < rows; ++row) {
      sum = hn::MulAdd(hn::Set(Floats(), x[row]), load_some(matrix + row * width, width), sum);
    }
    return store_some(sum, to, width);
  }
  int64_t i = 0;
  for (; i + 8 * kLanes <= width; i += 8 * kLanes) times_columns<8>(x, matrix + i, rows, width, to + i);
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) times_columns<4>(x, matrix + i, rows, width, to + i);
  for (; i + kLanes <= width; i += kLanes) times_columns<1>(x, matrix + i, rows, width, to + i);
  if (i < width) times_columns<1>(x, matrix + width - kLanes, rows, width, to + width - kLanes);
}

// --- The feature map ---

// e_i = exp(sign·y_i - max) for the n elements of `y` (padded). Returns 1 / Σ e.
HWY_INLINE Vec exponentials(const float* y, int64_t n, float sign, float* e) {
  const Floats d;
  const Vec times = hn::Set(d, sign), nothing = hn::Set(d, -INFINITY);
  Vec top = nothing, sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto there = hn::FirstN(d, static_cast<size_t>(n - i));
    top = hn::Max(top, hn::IfThenElse(there, hn::Mul(times, hn::Load(d, y + i)), nothing));
  }
  top = hn::MaxOfLanes(d, top);
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto there = hn::FirstN(d, static_cast<size_t>(n - i));
    const Vec x = hn::IfThenElseZero(there, exp_of(d, hn::MulSub(times, hn::Load(d, y + i), top)));
    hn::Store(x, d, e + i);
    sum = hn::Add(sum, x);
  }
  return hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, sum));
}

// φ [2·n] of y [n] (padded). `e` is scratch memory of y's size.
HWY_INLINE void features_row(const float* y, int64_t n, float least, float* e, float* phi) {
  const Floats d;
  for (const int half : {0, 1}) {
    const Vec scale = exponentials(y, n, half == 0 ? 1.0f : -1.0f, e);
    for (int64_t i = 0; i < n; i += kLanes) {
      // NaN, the second argument, is kept
      hn::Store(hn::Max(hn::Set(d, least), hn::Mul(hn::Load(d, e + i), scale)), d, e + i);
    }
    write_row(e, phi + half * n, 1, n);
  }
}

void features_block(const Features& call, int64_t block) {
  Scratch scratch;
  const int64_t n = call.width, padded = round_up(n, kLanes);
  float *y = scratch.take(padded), *e = scratch.take(padded);
  const int64_t end = (block + 1) * kBlockRows < call.rows ? (block + 1) * kBlockRows : call.rows;
  for (int64_t row = block * kBlockRows; row < end; ++row) {
    read_row(call.y + row * n, 1, n, 1.0f, y, padded);
    features_row(y, n, call.least, e, call.phi + row * 2 * n);
  }
}

// dy = φ⁺ (g⁺ - Σ φ⁺g⁺) - φ⁻ (g⁻ - Σ φ⁻g⁻), with g = 0 where φ was raised to the least value.
void features_backward_block(const Features& call, int64_t block) {
  const Floats d;
  Scratch scratch;
  const int64_t n = call.width, padded = round_up(n, kLanes);
  float *phi = scratch.take(padded), *grad = scratch.take(padded), *dy = scratch.take(padded);
  const Vec least = hn::Set(d, call.least);
  const int64_t end = (block + 1) * kBlockRows < call.rows ? (block + 1) * kBlockRows : call.rows;
  for (int64_t row = block * kBlockRows; row < end; ++row) {
    for (const int half : {0, 1}) {
      read_row(call.phi + row * 2 * n + half * n, 1, n, 1.0f, phi, padded);
      read_row(call.dphi + row * 2 * n + half * n, 1, n, 1.0f, grad, padded);
      Vec sum = hn::Zero(d);
      for (int64_t i = 0; i < n; i += kLanes) {
        const Vec p = hn::Load(d, phi + i), g = hn::IfThenElseZero(hn::Gt(p, least), hn::Load(d, grad + i));
        hn::Store(g, d, grad + i);
        sum = hn::MulAdd(p, g, sum);
      }
      sum = hn::SumOfLanes(d, sum);
      for (int64_t i = 0; i < n; i += kLanes) {
        const Vec part = hn::Mul(hn::Load(d, phi + i), hn::Sub(hn::Load(d, grad + i), sum));
        hn::Store(half == 0 ? part : hn::Sub(hn::Load(d, dy + i), part), d, dy + i);
      }
    }
    write_row(dy, call.dy + row * n, 1, n);
  }
}

HWY_INLINE float* place(const Timed& x, int64_t batch, int64_t token, int64_t head) {
  return address<float>(x, {batch, head, token, 1, 1}, 0);
}

void mapped_features_row(const MappedFeatures& call, int64_t row) {
  Scratch scratch;
  const int64_t n = call.width, padded = round_up(n, kLanes), batch = row / call.tokens, token = row % call.tokens;
  float *y = scratch.take(padded), *e = scratch.take(padded);
  for (int64_t i = n; i < padded; ++i) y[i] = 0;
  for (int64_t head = 0; head < call.heads; ++head) {
    times_matrix(place(call.x, batch, token, head), call.weight + head * call.inputs * n, call.inputs, n, y);
    features_row(y, n, call.least, e, place(call.phi, batch, token, head));
  }
}

// --- Tiles of one head's tokens times a matrix ---

// The block of tokens of one of the tasks [B, H, blocks of tokens].
struct BlockOfHead {
  int64_t batch, head, first, end;

  BlockOfHead(int64_t task, int64_t heads, int64_t tokens) {
    const int64_t blocks = (tokens + kBlockRows - 1) / kBlockRows;
    batch = task / (heads * blocks);
    head = task / blocks % heads;
    first = task % blocks * kBlockRows;
    end = first + kBlockRows < tokens ? first + kBlockRows : tokens;
  }
};

// Multiplies x [tokens, depth] by `matrix` [depth, columns] (contiguous) and calls body(token, row of the product) for
// the block's tokens.
template <class Body>
HWY_INLINE void for_tokens(const Timed& x, const BlockOfHead& at, const float* matrix, int64_t depth, int64_t columns,
                           Scratch& scratch, const Body& body) {
  const PaddedMatrix padded{scratch.take(depth * round_up(columns, kLanes)), depth, columns};
  padded.read(matrix);
  const auto read = [&](int64_t first, int64_t tokens, float* tile, int64_t width) {
    read_tile(x, {at.batch, at.head, first, 1, tokens}, 0, depth, 1.0f, tile, width);
  };
  for_products(at.first, at.end, padded, scratch, read, body);
}

void mapped_features_block(const MappedFeatures& call, int64_t task) {
  Scratch scratch;
  const BlockOfHead at(task, call.heads, call.tokens);
  float* e = scratch.take(round_up(call.width, kLanes));
  for_tokens(call.x, at, call.weight + at.head * call.inputs * call.width, call.inputs, call.width, scratch,
             [&](int64_t token, const float* y) {
               features_row(y, call.width, call.least, e, place(call.phi, at.batch, token, at.head));
             });
}

// --- Joining the softmax and the linear part ---

HWY_INLINE float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// out = near · o_near + far · o_far. The other numbers are needed for the derivatives of these weights.
struct Weights {
  float near, far;
  float gate = 0, softmax = 0, whole = 0;  // kLolcats: σ(factor), σ(factor) e^(lse - c), and the denominator
  float share = 0, total = 0;              // otherwise: the linear part's share, and its denominator
};

HWY_INLINE Weights weights_of(const Join& call, const float* far, int64_t batch, int64_t token, int64_t head) {
  const float total = far[call.values], lse = *place(call.lse, batch, token, head);
  Weights w{};
  w.total = total;
  if (call.mixture == Mixture::kLolcats) {
    w.gate = logistic(call.factor[head]);
    w.softmax = w.gate * expf(lse - *place(call.row_max, batch, token, head));
    w.whole = w.softmax + total;
    w.near = w.softmax / w.whole;
    w.far = 1.0f / w.whole;
    return w;
  }
  if (total != 0) w.share = logistic(logf(total) - lse - (call.mixture == Mixture::kGated ? call.factor[head] : 0.0f));
  w.near = 1.0f - w.share;
  w.far = total != 0 ? w.share / total : 0.0f;
  return w;
}

// Calls body(batch, token) for the rows of a block.
template <class Body>
HWY_INLINE void for_rows(const Join& call, int64_t block, const Body& body) {
  const int64_t rows = call.batch * call.tokens;
  const int64_t end = (block + 1) * kBlockRows < rows ? (block + 1) * kBlockRows : rows;
  for (int64_t row = block * kBlockRows; row < end; ++row) body(row / call.tokens, row % call.tokens);
}

// Joins one token and head; far is [V+1].
HWY_INLINE void join_head(const Join& call, const float* far, int64_t batch, int64_t token, int64_t head) {
  const Floats d;
  const Weights w = weights_of(call, far, batch, token, head);
  const float* near = place(call.near, batch, token, head);
  float* out = place(call.out, batch, token, head);
  const Vec a = hn::Set(d, w.near), b = hn::Set(d, w.far);
  for (int64_t i = 0; i < call.values; i += kLanes) {
    const int64_t n = call.values - i < kLanes ? call.values - i : kLanes;
    store_some(hn::MulAdd(a, load_some(near + i, n), hn::Mul(b, load_some(far + i, n))), out + i, n);
  }
}

void join_block(const Join& call, int64_t block) {
  for_rows(call, block, [&](int64_t batch, int64_t token) {
    for (int64_t head = 0; head < call.heads; ++head) {
      join_head(call, place(call.far, batch, token, head), batch, token, head);
    }
  });
}

const float* sums_of(const JoinSums& call, int64_t batch, int64_t head) {
  return call.sums + (batch * call.join.heads + head) * call.features * (call.join.values + 1);
}

void join_sums_row(const JoinSums& call, int64_t row) {
  Scratch scratch;
  const Join& join = call.join;
  const int64_t width = join.values + 1, batch = row / join.tokens, token = row % join.tokens;
  float* far = scratch.take(round_up(width, kLanes));
  for (int64_t head = 0; head < join.heads; ++head) {
    times_matrix(place(call.phi, batch, token, head), sums_of(call, batch, head), call.features, width, far);
    join_head(join, far, batch, token, head);
  }
}

void join_sums_block(const JoinSums& call, int64_t task) {
  Scratch scratch;
  const Join& join = call.join;
  const BlockOfHead at(task, join.heads, join.tokens);
  for_tokens(call.phi, at, sums_of(call, at.batch, at.head), call.features, join.values + 1, scratch,
             [&](int64_t token, const float* far) { join_head(join, far, at.batch, token, at.head); });
}

// Gradients of the scalars next to the outputs, from the sums do·near and do·far.
struct ScalarGradients {
  float total, lse, row_max, factor;
};

HWY_INLINE ScalarGradients scalar_gradients(const Join& call, const Weights& w, float with_near, float with_far) {
  if (call.mixture == Mixture::kLolcats) {
    const float mean = (w.near * with_near + w.far * with_far) / w.whole;
    // multiplied by its own value: the gradient of its log
    const float softmax = (with_near / w.whole - mean) * w.softmax;
    return {-mean, softmax, -softmax, softmax * (1.0f - w.gate)};
  }
  if (w.total == 0) return {};
  const float logit = (with_far / w.total - with_near) * w.share * w.near;
  const float total = -w.far * (w.near * with_near + w.far * with_far);  // logit / total after cancellation
  return {total, -logit, 0.0f, call.mixture == Mixture::kGated ? -logit : 0.0f};
}

void join_backward_block(const Join& call, int64_t block) {
  const Floats d;
  float* parts = call.parts + block * call.heads;
  for (int64_t head = 0; head < call.heads; ++head) parts[head] = 0;
  for_rows(call, block, [&](int64_t batch, int64_t token) {
    for (int64_t head = 0; head < call.heads; ++head) {
      const Weights w = weights_of(call, place(call.far, batch, token, head), batch, token, head);
      const float *near = place(call.near, batch, token, head), *far = place(call.far, batch, token, head);
      const float* dout = place(call.dout, batch, token, head);
      float* dnear = call.dnear.data ? place(call.dnear, batch, token, head) : nullptr;
      float* dfar = place(call.dfar, batch, token, head);
      Vec with_near = hn::Zero(d), with_far = hn::Zero(d);
      for (int64_t i = 0; i < call.values; i += kLanes) {
        const int64_t n = call.values - i < kLanes ? call.values - i : kLanes;
        const Vec g = load_some(dout + i, n);
        with_near = hn::MulAdd(g, load_some(near + i, n), with_near);
        with_far = hn::MulAdd(g, load_some(far + i, n), with_far);
        store_some(hn::Mul(g, hn::Set(d, w.far)), dfar + i, n);
        if (dnear) store_some(hn::Mul(g, hn::Set(d, w.near)), dnear + i, n);
      }
      const ScalarGradients s = scalar_gradients(call, w, hn::GetLane(hn::SumOfLanes(d, with_near)),
                                                 hn::GetLane(hn::SumOfLanes(d, with_far)));
      dfar[call.values] = s.total;
      if (call.dlse.data) *place(call.dlse, batch, token, head) = s.lse;
      if (call.drow_max.data) *place(call.drow_max, batch, token, head) = s.row_max;
      parts[head] += s.factor;
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::lolcats_kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::lolcats_kernel {

namespace {

int64_t blocks_of(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

template <class Call, class Body>
void run(const Call& call, int64_t rows, const Parallel& parallel, Body body) {
  kernels::run_tasks(call, blocks_of(rows), parallel, body);
}

HWY_EXPORT(features_block);
HWY_EXPORT(features_backward_block);
HWY_EXPORT(mapped_features_row);
HWY_EXPORT(mapped_features_block);
HWY_EXPORT(join_block);
HWY_EXPORT(join_sums_row);
HWY_EXPORT(join_sums_block);
HWY_EXPORT(join_backward_block);

}  // namespace

void features(const Features& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(features_block));
}

void features_backward(const Features& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(features_backward_block));
}

void mapped_features(const MappedFeatures& call, const Parallel& parallel) {
  if (call.tokens <= kFewTokens) {
    return kernels::run_tasks(call, call.batch * call.tokens, parallel, &HWY_DYNAMIC_DISPATCH(mapped_features_row));
  }
  kernels::run_tasks(call, call.batch * call.heads * blocks_of(call.tokens), parallel,
                     &HWY_DYNAMIC_DISPATCH(mapped_features_block));
}

int64_t parts_size(const Join& call) { return blocks_of(call.batch * call.tokens) * call.heads; }

void join(const Join& call, const Parallel& parallel) {
  run(call, call.batch * call.tokens, parallel, &HWY_DYNAMIC_DISPATCH(join_block));
}

void join_sums(const JoinSums& call, const Parallel& parallel) {
  const Join& join = call.join;
  if (join.tokens <= kFewTokens) {
    return kernels::run_tasks(call, join.batch * join.tokens, parallel, &HWY_DYNAMIC_DISPATCH(join_sums_row));
  }
  kernels::run_tasks(call, join.batch * join.heads * blocks_of(join.tokens), parallel,
                     &HWY_DYNAMIC_DISPATCH(join_sums_block));
}

// Sums over all rows within blocks first, then over the blocks, so that the result does not depend on the number of
// threads.
void join_backward(const Join& call, const Parallel& parallel) {
  run(call, call.batch * call.tokens, parallel, &HWY_DYNAMIC_DISPATCH(join_backward_block));
  for (int64_t head = 0; head < call.heads; ++head) {
    float sum = 0;
    for (int64_t at = head; at < parts_size(call); at += call.heads) sum += call.parts[at];
    call.dfactor[head] = sum;
  }
}

}  // namespace cortado::lolcats_kernel
#endif
