// Rows are read into float32, processed in the first-level cache, and written back in their type. Compiled once per
// instruction set.
#include "cortado/nn/fused/kernel.h"

#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/nn/fused/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/primitives/kernels/scratch.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::fused {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace kernels;
using namespace kernels::HWY_NAMESPACE;

// Channels processed at a time.
constexpr int64_t kPart = 512;

// Reads n elements of a row from `column` on, padded with zeros to whole vectors.
void read(const Rows& x, int64_t row, int64_t column, int64_t n, float* to) {
  const int64_t at = row * x.stride + column, padded = round_up(n, kLanes);
  if (x.type == Element::kFloat32) return read_row(static_cast<const float*>(x.data) + at, 1, n, 1.0f, to, padded);
  if (x.type == Element::kBFloat16) return read_row(static_cast<const BFloat16*>(x.data) + at, 1, n, 1.0f, to, padded);
  read_row(static_cast<const hwy::float16_t*>(x.data) + at, 1, n, 1.0f, to, padded);
}

void write(const float* from, const Rows& x, int64_t row, int64_t column, int64_t n) {
  if (!x.data) return;
  const int64_t at = row * x.stride + column;
  if (x.type == Element::kFloat32) return write_row(from, static_cast<float*>(x.data) + at, 1, n);
  if (x.type == Element::kBFloat16) return write_row(from, static_cast<BFloat16*>(x.data) + at, 1, n);
  write_row(from, static_cast<hwy::float16_t*>(x.data) + at, 1, n);
}

// The rows of a block.
struct Range {
  int64_t begin, end;
  Range(int64_t block, int64_t rows) : begin(block * kBlock), end(begin + kBlock < rows ? begin + kBlock : rows) {}
};

// 1 / (1 + e^-x)
HWY_INLINE Vec sigmoid_of(Floats d, Vec x) {
  const Vec e = exp_of(d, hn::Neg(hn::Abs(x))), one = hn::Set(d, 1.0f);
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

// 1 - e^x for x <= 0; a series near 0, where the difference cancels.
HWY_INLINE Vec one_minus_exp(Floats d, Vec x) {
  Vec p = hn::Set(d, 1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f}) p = hn::MulAdd(p, x, hn::Set(d, c));
  const Vec far = hn::Sub(hn::Set(d, 1.0f), exp_of(d, x));
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, -0.35f)), hn::Neg(hn::Mul(p, x)), far);
}

// log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x|, as 2 artanh(u / (2 + u)), whose series is short.
HWY_INLINE Vec softplus_of(Floats d, Vec x) {
  const Vec u = exp_of(d, hn::Neg(hn::Abs(x)));
  const Vec s = hn::Div(u, hn::Add(hn::Set(d, 2.0f), u)), square = hn::Mul(s, s);
  Vec p = hn::Set(d, 1.0f / 13);
  for (const float c : {1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f}) {
    p = hn::MulAdd(p, square, hn::Set(d, c));
  }
  return hn::MulAdd(hn::Add(s, s), p, hn::Max(x, hn::Zero(d)));
}

// --- RMS norm. ---

// Buffers for a group's numbers, weights and their gradient, padded.
struct Group {
  int64_t size, padded;
  float *x, *y, *dx, *weight, *dweight;

  Group(const RmsNorm& call, Scratch& scratch) : size(call.width / call.groups), padded(round_up(size, kLanes)) {
    for (float** part : {&x, &y, &dx}) *part = scratch.take(padded);
    for (float** part : {&weight, &dweight}) *part = scratch.take(call.groups * padded);
    for (int64_t g = 0; g < call.groups; ++g)
      read_row(call.weight + g * size, 1, size, 1.0f, weight + g * padded, padded);
    fill(dweight, call.groups * padded, 0);
  }
};

HWY_INLINE float sum_of_products(const float* a, const float* b, int64_t n) {
  const Floats d;
  Vec even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), even);
    odd = hn::MulAdd(hn::Load(d, a + i + kLanes), hn::Load(d, b + i + kLanes), odd);
  }
  for (; i < n; i += kLanes) even = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), even);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

void rms_norm_block(const RmsNorm& call, int64_t block) {
  const Floats d;
  Scratch scratch;
  const Group group(call, scratch);
  const Range rows(block, call.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t g = 0; g < call.groups; ++g) {
      read(call.x, row, g * group.size, group.size, group.x);
      const float mean = sum_of_products(group.x, group.x, group.padded) / static_cast<float>(group.size);
      const Vec scale = hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Set(d, mean + call.eps)));
      call.scale[row * call.groups + g] = hn::GetLane(scale);
      const float* weight = group.weight + g * group.padded;
      for (int64_t i = 0; i < group.padded; i += kLanes) {
        hn::Store(hn::Mul(hn::Mul(hn::Load(d, group.x + i), scale), hn::Load(d, weight + i)), d, group.y + i);
      }
      write(group.y, call.y, row, g * group.size, group.size);
    }
  }
}

// With n = x · scale:  dx = scale (w dy - n mean(w dy n)),  dw = Σ dy n.
void rms_norm_backward_group(const RmsNorm& call, const Group& group, int64_t row, int64_t g) {
  const Floats d;
  const Vec scale = hn::Set(d, call.scale[row * call.groups + g]);
  const float* weight = group.weight + g * group.padded;
  float* dweight = group.dweight + g * group.padded;
  read(call.x, row, g * group.size, group.size, group.x);
  read(call.dy, row, g * group.size, group.size, group.y);
  Vec sum = hn::Zero(d);
  for (int64_t i = 0; i < group.padded; i += kLanes) {
    const Vec n = hn::Mul(hn::Load(d, group.x + i), scale), dy = hn::Load(d, group.y + i);
    const Vec grad = hn::Mul(dy, hn::Load(d, weight + i));
    hn::Store(hn::MulAdd(dy, n, hn::Load(d, dweight + i)), d, dweight + i);
    sum = hn::MulAdd(grad, n, sum);
    hn::Store(n, d, group.x + i);
    hn::Store(grad, d, group.dx + i);
  }
  const Vec mean = hn::Div(hn::SumOfLanes(d, sum), hn::Set(d, static_cast<float>(group.size)));
  for (int64_t i = 0; i < group.padded; i += kLanes) {
    const Vec rest = hn::NegMulAdd(hn::Load(d, group.x + i), mean, hn::Load(d, group.dx + i));
    hn::Store(hn::Mul(rest, scale), d, group.dx + i);
  }
  write(group.dx, call.dx, row, g * group.size, group.size);
}

void rms_norm_backward_block(const RmsNorm& call, int64_t block) {
  Scratch scratch;
  const Group group(call, scratch);
  const Range rows(block, call.rows);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t g = 0; g < call.groups; ++g) rms_norm_backward_group(call, group, row, g);
  }
  float* to = call.parts + block * call.width;
  for (int64_t g = 0; g < call.groups; ++g)
    write_row(group.dweight + g * group.padded, to + g * group.size, 1, group.size);
}

// --- Elementwise functions. ---

// Calls body(row, column, n) for every row of a block and kPart columns at a time.
template <class Body>
HWY_INLINE void for_parts(int64_t block, int64_t rows, int64_t width, const Body& body) {
  const Range range(block, rows);
  for (int64_t column = 0; column < width; column += kPart) {
    const int64_t n = width - column < kPart ? width - column : kPart;
    for (int64_t row = range.begin; row < range.end; ++row) body(row, column, n);
  }
}

void gated_silu_block(const GatedSilu& call, int64_t block) {
  HWY_ALIGN float gate[kPart], up[kPart];
  for_parts(block, call.rows, call.width, [&](int64_t row, int64_t column, int64_t n) {
    const Floats d;
    read(call.gate, row, column, n, gate);
    read(call.up, row, column, n, up);
    for (int64_t i = 0; i < n; i += kLanes) {
      const Vec x = hn::Load(d, gate + i);
      hn::Store(hn::Mul(hn::Mul(x, sigmoid_of(d, x)), hn::Load(d, up + i)), d, up + i);
    }
    write(up, call.y, row, column, n);
  });
}

void gated_silu_backward_block(const GatedSilu& call, int64_t block) {
  HWY_ALIGN float gate[kPart], up[kPart], dy[kPart];
  for_parts(block, call.rows, call.width, [&](int64_t row, int64_t column, int64_t n) {
    const Floats d;
    const Vec one = hn::Set(d, 1.0f);
    read(call.gate, row, column, n, gate);
    read(call.up, row, column, n, up);
    read(call.dy, row, column, n, dy);
    for (int64_t i = 0; i < n; i += kLanes) {
      const Vec x = hn::Load(d, gate + i), s = sigmoid_of(d, x), grad = hn::Load(d, dy + i);
      const Vec slope = hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
      hn::Store(hn::Mul(hn::Mul(grad, hn::Load(d, up + i)), slope), d, gate + i);
      hn::Store(hn::Mul(grad, hn::Mul(x, s)), d, up + i);
    }
    write(gate, call.dgate, row, column, n);
    write(up, call.dup, row, column, n);
  });
}

// The scan's inputs for one vector: the log of the factor on the state, and what is added.
struct RgLruWrite {
  Vec log_a, b;
};
HWY_INLINE RgLruWrite rg_lru_write(Vec r, Vec i, Vec x, Vec slope, bool first) {
  const Floats d;
  const Vec log_a = hn::Mul(sigmoid_of(d, r), slope), input = hn::Mul(sigmoid_of(d, i), x);
  const Vec keep = hn::Sqrt(one_minus_exp(d, hn::Add(log_a, log_a)));
  return {log_a, first ? input : hn::Mul(keep, input)};
}

void rg_lru_gates_block(const RgLruGates& call, int64_t block) {
  HWY_ALIGN float r[kPart], i[kPart], x[kPart], slope[kPart];
  for_parts(block, call.rows, call.width, [&](int64_t row, int64_t column, int64_t n) {
    const Floats d;
    if (row % kBlock == 0) read_row(call.slope + column, 1, n, 1.0f, slope, round_up(n, kLanes));
    read(call.r, row, column, n, r);
    read(call.i, row, column, n, i);
    read(call.x, row, column, n, x);
    const bool first = call.first && call.first[row];
    for (int64_t k = 0; k < n; k += kLanes) {
      const auto [log_a, b] =
          rg_lru_write(hn::Load(d, r + k), hn::Load(d, i + k), hn::Load(d, x + k), hn::Load(d, slope + k), first);
      hn::Store(log_a, d, r + k);
      hn::Store(b, d, i + k);
    }
    write(r, call.log_a, row, column, n);
    write(i, call.b, row, column, n);
  });
}

// y [d] = bias + x W for one block's d channels, W [d, d] (in, out). Processes a few vectors of columns at a time,
// padded to whole vectors.
void multiply_block(const float* x, const float* weight, const float* bias, int64_t size, float* y) {
  const Floats d;
  read_row(bias, 1, size, 1.0f, y, round_up(size, kLanes));
  constexpr int64_t kColumns = 4 * kLanes;
  int64_t column = 0;
  for (; column + kColumns <= size; column += kColumns) {
    Vec sum[4];
    for (int v = 0; v < 4; ++v) sum[v] = hn::Load(d, y + column + v * kLanes);
    for (int64_t i = 0; i < size; ++i) {
      const Vec in = hn::Set(d, x[i]);
      const float* row = weight + i * size + column;
      for (int v = 0; v < 4; ++v) sum[v] = hn::MulAdd(in, hn::LoadU(d, row + v * kLanes), sum[v]);
    }
    for (int v = 0; v < 4; ++v) hn::Store(sum[v], d, y + column + v * kLanes);
  }
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = column; j < size; ++j) y[j] += x[i] * weight[i * size + j];
  }
}

// One task per block of channels and row.
void rg_lru_step_block(const RgLruStep& call, int64_t task) {
  const Floats d;
  Scratch scratch;
  const int64_t row = task / call.blocks, block = task % call.blocks, size = call.width / call.blocks;
  const int64_t padded = round_up(size, kLanes), at = block * size, matrix = at * size, to = row * call.width + at;
  float *x = scratch.take(padded), *r = scratch.take(padded), *i = scratch.take(padded);
  float *lambda = scratch.take(padded), *h = scratch.take(padded);
  read(call.x, row, at, size, x);
  multiply_block(x, call.r_weight + matrix, call.r_bias + at, size, r);
  multiply_block(x, call.i_weight + matrix, call.i_bias + at, size, i);
  read_row(call.lambda + at, 1, size, 1.0f, lambda, padded);
  read_row(call.start + to, 1, size, 1.0f, h, padded);
  const bool first = call.position[row] == 0;
  for (int64_t k = 0; k < padded; k += kLanes) {
    const Vec slope = hn::Mul(hn::Set(d, -call.sharpness), softplus_of(d, hn::Load(d, lambda + k)));
    const auto [log_a, b] = rg_lru_write(hn::Load(d, r + k), hn::Load(d, i + k), hn::Load(d, x + k), slope, first);
    hn::Store(hn::MulAdd(exp_of(d, log_a), hn::Load(d, h + k), b), d, h + k);
  }
  write_row(h, call.h + to, 1, size);
}

// Buffers of kPart channels.
struct RgLruParts {
  HWY_ALIGN float r[kPart], i[kPart], x[kPart], dlog_a[kPart], db[kPart], slope[kPart], dslope[kPart];
};

// Computes one vector at k: the gradients overwrite r, i and x.
HWY_INLINE void rg_lru_gradients(RgLruParts& p, int64_t k, bool first, float largest_slope) {
  const Floats d;
  const Vec one = hn::Set(d, 1.0f), x = hn::Load(d, p.x + k), slope = hn::Load(d, p.slope + k);
  const Vec r = sigmoid_of(d, hn::Load(d, p.r + k)), i = sigmoid_of(d, hn::Load(d, p.i + k));
  const Vec twice = hn::Mul(hn::Add(r, r), slope), rest = one_minus_exp(d, twice), db = hn::Load(d, p.db + k);
  const Vec keep = first ? one : hn::Sqrt(rest);
  Vec dlog_a = hn::Load(d, p.dlog_a + k);
  if (!first) {  // d√(1 - a²)/dlog a = -2a² / (2√(1 - a²))
    const Vec least = hn::Set(d, 1 / (largest_slope * largest_slope));
    const Vec root = hn::Sqrt(hn::Max(hn::Mul(hn::Set(d, 4.0f), rest), least));
    const Vec steep = hn::Div(hn::Mul(hn::Set(d, -2.0f), exp_of(d, twice)), root);
    dlog_a = hn::MulAdd(hn::Mul(hn::Mul(db, i), x), steep, dlog_a);
  }
  const Vec dinput = hn::Mul(db, keep), dr = hn::Mul(dlog_a, r);
  hn::Store(hn::Add(hn::Load(d, p.dslope + k), dr), d, p.dslope + k);
  hn::Store(hn::Mul(hn::Mul(dr, slope), hn::Sub(one, r)), d, p.r + k);
  hn::Store(hn::Mul(hn::Mul(dinput, x), hn::Mul(i, hn::Sub(one, i))), d, p.i + k);
  hn::Store(hn::Mul(dinput, i), d, p.x + k);
}

void rg_lru_gates_backward_block(const RgLruGates& call, int64_t block) {
  RgLruParts p;
  const Range rows(block, call.rows);
  for_parts(block, call.rows, call.width, [&](int64_t row, int64_t column, int64_t n) {
    if (row == rows.begin) {
      read_row(call.slope + column, 1, n, 1.0f, p.slope, round_up(n, kLanes));
      fill(p.dslope, round_up(n, kLanes), 0);
    }
    read(call.r, row, column, n, p.r);
    read(call.i, row, column, n, p.i);
    read(call.x, row, column, n, p.x);
    read(call.dlog_a, row, column, n, p.dlog_a);
    read(call.db, row, column, n, p.db);
    for (int64_t k = 0; k < n; k += kLanes) {
      rg_lru_gradients(p, k, call.first && call.first[row], call.largest_slope);
    }
    write(p.r, call.dr, row, column, n);
    write(p.i, call.di, row, column, n);
    write(p.x, call.dx, row, column, n);
    if (row == rows.end - 1) write_row(p.dslope, call.parts + block * call.width + column, 1, n);
  });
}

// --- Rotary positions. ---

void rotary_head(const Rotary& call, const float* x, const float* cos, const float* sin, float* y) {
  const Floats d;
  const Vec direction = hn::Set(d, call.direction);
  // Writes the upper halves last, because whole vectors of the lower halves overrun into them.
  for (int64_t k = 0; k < call.half; k += kLanes) {
    const Vec s = hn::Mul(direction, hn::Load(d, sin + k)), upper = hn::LoadU(d, x + call.half + k);
    hn::StoreU(hn::NegMulAdd(s, upper, hn::Mul(hn::Load(d, cos + k), hn::Load(d, x + k))), d, y + k);
  }
  for (int64_t k = 0; k < call.half; k += kLanes) {
    const Vec s = hn::Mul(direction, hn::Load(d, sin + k)), upper = hn::LoadU(d, x + call.half + k);
    hn::StoreU(hn::MulAdd(s, hn::Load(d, x + k), hn::Mul(hn::Load(d, cos + k), upper)), d, y + call.half + k);
  }
  for (int64_t k = 2 * call.half; k < call.width; k += kLanes) hn::StoreU(hn::LoadU(d, x + k), d, y + k);
}

// Here rows are the tokens of all batch rows.
void rotary_block(const Rotary& call, int64_t block) {
  Scratch scratch;
  const int64_t padded = round_up(call.width, kLanes) + kLanes, half = round_up(call.half, kLanes);
  float *x = scratch.take(padded), *y = scratch.take(padded), *cos = scratch.take(half), *sin = scratch.take(half);
  fill(x, padded, 0);
  const Range rows(block, call.batch * call.tokens);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t token = row % call.tokens, angles = (call.same_rows ? token : row) * call.half;
    read_row(call.cos + angles, 1, call.half, 1.0f, cos, half);
    read_row(call.sin + angles, 1, call.half, 1.0f, sin, half);
    for (int64_t head = 0; head < call.heads; ++head) {
      const int64_t at = row / call.tokens * call.x.row + token * call.x.token + head * call.x.head;
      read({call.x.data, call.x.type, 0}, 0, at, call.width, x);
      rotary_head(call, x, cos, sin, y);
      write(y, call.y, 0, (row * call.heads + head) * call.width, call.width);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::fused
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::fused {

namespace {

template <class Call, class Body>
void run(const Call& call, int64_t rows, const Parallel& parallel, Body body) {
  kernels::run_tasks(call, (rows + kBlock - 1) / kBlock, parallel, body);
}

void add_parts(const float* parts, int64_t rows, int64_t width, float* to) {
  for (int64_t i = 0; i < width; ++i) to[i] = 0;
  for (int64_t at = 0; at < parts_size(rows, width); at += width) {
    for (int64_t i = 0; i < width; ++i) to[i] += parts[at + i];
  }
}

HWY_EXPORT(rms_norm_block);
HWY_EXPORT(rms_norm_backward_block);
HWY_EXPORT(gated_silu_block);
HWY_EXPORT(gated_silu_backward_block);
HWY_EXPORT(rg_lru_gates_block);
HWY_EXPORT(rg_lru_gates_backward_block);
HWY_EXPORT(rg_lru_step_block);
HWY_EXPORT(rotary_block);

}  // namespace

void rms_norm(const RmsNorm& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(rms_norm_block));
}

void rms_norm_backward(const RmsNorm& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(rms_norm_backward_block));
  add_parts(call.parts, call.rows, call.width, call.dweight);
}

void gated_silu(const GatedSilu& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(gated_silu_block));
}

void gated_silu_backward(const GatedSilu& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(gated_silu_backward_block));
}

void rg_lru_gates(const RgLruGates& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(rg_lru_gates_block));
}

void rg_lru_gates_backward(const RgLruGates& call, const Parallel& parallel) {
  run(call, call.rows, parallel, &HWY_DYNAMIC_DISPATCH(rg_lru_gates_backward_block));
  add_parts(call.parts, call.rows, call.width, call.dslope);
}

void rg_lru_step(const RgLruStep& call, const Parallel& parallel) {
  kernels::run_tasks(call, call.rows * call.blocks, parallel, &HWY_DYNAMIC_DISPATCH(rg_lru_step_block));
}

void rotary(const Rotary& call, const Parallel& parallel) {
  run(call, call.batch * call.tokens, parallel, &HWY_DYNAMIC_DISPATCH(rotary_block));
}

}  // namespace cortado::fused
#endif
