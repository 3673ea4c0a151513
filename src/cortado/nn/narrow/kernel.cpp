// Compiled once per instruction set. Each step of an integer product takes as many inputs as one instruction multiplies
// and adds into a 32-bit lane: four bytes with VNNI (Highway's AVX3_DL), two 16-bit integers on other x86, one float32
// elsewhere.
#include "cortado/nn/narrow/kernel.h"

#include <hwy/cache_control.h>
#include <math.h>
#include <string.h>

#define HWY_WANT_AVX3_DL
#include "cortado/primitives/kernels/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cortado/nn/narrow/kernel.cpp"
#include <hwy/foreach_target.h>
// after foreach_target
#include "cortado/nn/narrow/integers-inl.h"
#include "cortado/nn/narrow/six_bits-inl.h"
#include "cortado/primitives/kernels/tasks.h"
#include "cortado/primitives/kernels/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cortado::narrow {
namespace HWY_NAMESPACE {
namespace {

// One task per block of each map; it processes its chunks of rows in turn.
void multiply_task(const Product& call, int64_t task) {
  const int64_t chunks = (call.rows + kTaskRows - 1) / kTaskRows, first = task % chunks * kTaskRows;
  int64_t block = task / chunks;
  const Map* map = call.maps;
  for (; block >= map->matrix.blocks(); ++map) block -= map->matrix.blocks();
  const int64_t rows = call.rows - first < kTaskRows ? call.rows - first : kTaskRows;
  const Part part{map, block, first, rows};
  const Rounded x(call);
  if (map->matrix.bits == 8) return multiply_part<Form::kInt8>(part, x);
  if (map->matrix.bits == 6) return multiply_six(part, x);
  map->matrix.centred() ? multiply_part<Form::kCentred>(part, x) : multiply_part<Form::kInt4>(part, x);
}

// --- Floating-point weights, a few rows. ---

// Computes four outputs of kRows rows.
template <class T, int kRows>
HWY_INLINE void short_tile(const ShortProduct& call, int64_t row, int64_t column) {
  const Floats d;
  const T* weight = static_cast<const T*>(call.weight) + column * call.w_row;
  const float* x = call.x + row * call.x_row;
  const int64_t outputs = call.out - column < 4 ? call.out - column : 4;
  const int64_t step[4] = {0, outputs > 1 ? call.w_row : 0, outputs > 2 ? 2 * call.w_row : 0,
                           outputs > 3 ? 3 * call.w_row : 0};
  Vec sum[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 4; ++c) sum[r][c] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + kLanes <= call.in; i += kLanes) {
    Vec input[kRows];
    for (int r = 0; r < kRows; ++r) input[r] = hn::LoadU(d, x + r * call.x_row + i);
    for (int c = 0; c < 4; ++c) {
      hwy::Prefetch(weight + (4 + c) * call.w_row + i);  // the next four outputs' weights
      const Vec w = load_vector(d, weight + step[c] + i);
      for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(input[r], w, sum[r][c]);
    }
  }
  if (i < call.in) {
    for (int c = 0; c < 4; ++c) {
      const Vec w = load_some(weight + step[c] + i, call.in - i);
      for (int r = 0; r < kRows; ++r) {
        sum[r][c] = hn::MulAdd(load_some(x + r * call.x_row + i, call.in - i), w, sum[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float all[4] = {};
    add_sums_of_four(d, sum[r], all);
    float* y = call.y + (row + r) * call.y_row + column;
    for (int64_t c = 0; c < outputs; ++c) y[c] = all[c] + (call.bias ? call.bias[column + c] : 0);
  }
}

template <class T>
void short_outputs(const ShortProduct& call, int64_t from, int64_t to) {
  for (int64_t column = from; column < to; column += 4) {
    int64_t row = 0;
    for (; row + 2 <= call.rows; row += 2) short_tile<T, 2>(call, row, column);
    if (row < call.rows) short_tile<T, 1>(call, row, column);
  }
}

void short_task(const ShortProduct& call, int64_t task) {
  const int64_t from = task * kShortOutputs, to = from + kShortOutputs < call.out ? from + kShortOutputs : call.out;
  if (call.type == Element::kFloat32) return short_outputs<float>(call, from, to);
  if (call.type == Element::kBFloat16) return short_outputs<BFloat16>(call, from, to);
  short_outputs<hwy::float16_t>(call, from, to);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cortado::narrow
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cortado::narrow {

namespace {

// Rounds up to the next bfloat16, so that no value leaves its range.
uint16_t scale_bits(float largest) {
  const float scale = largest / 127;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  return static_cast<uint16_t>((bits + 0xFFFF) >> 16);
}

float wide_scale(uint16_t scale) {
  const uint32_t bits = static_cast<uint32_t>(scale) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounds n numbers of a group into places 4 · kColumns bytes apart, four at a time.
void pack_group(const float* from, int64_t n, int8_t* values, uint16_t& scale, uint16_t& sum) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float size = fabsf(from[i]);
    finite = finite && size <= 3e38f;
    largest = size > largest ? size : largest;
  }
  scale = finite ? scale_bits(largest) : 0x7FC0;  // a NaN stays a NaN
  const float inverse = finite && largest > 1e-30f ? 1 / wide_scale(scale) : 0;
  int all = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<int8_t>(finite ? lrintf(from[i] * inverse) : 0);
    values[i / 4 * 4 * kColumns + i % 4] = value;
    all += value;
  }
  sum = static_cast<uint16_t>(all);
}

HWY_EXPORT(round_rows);
HWY_EXPORT(multiply_task);
HWY_EXPORT(short_task);

}  // namespace

void pack_int8(const float* rows, int64_t stride, const Matrix& to, int64_t block) {
  const int64_t groups = to.groups(), size = to.block_bytes();
  auto* values = reinterpret_cast<int8_t*>(to.values) + block * size;
  memset(values, 0, static_cast<size_t>(size));
  for (int64_t c = 0; c < kColumns; ++c) {
    const bool there = block * kColumns + c < to.out;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = (block * groups + g) * kColumns + c, left = to.in - g * kGroup;
      pack_group(rows + c * stride + g * kGroup,
                 !there          ? 0
                 : left < kGroup ? left
                                 : kGroup,
                 values + g * kGroup * kColumns + 4 * c, static_cast<uint16_t*>(to.scales)[at], to.offsets[at]);
    }
  }
}

void unpack_int8(const Matrix& from, int64_t row, float* to) {
  const int64_t block = row / kColumns, c = row % kColumns, groups = from.groups();
  const auto* values = reinterpret_cast<const int8_t*>(from.values) + block * from.block_bytes() + 4 * c;
  for (int64_t i = 0; i < from.in; ++i) {
    const float scale =
        wide_scale(static_cast<const uint16_t*>(from.scales)[(block * groups + i / kGroup) * kColumns + c]);
    to[i] = scale * static_cast<float>(values[i / 4 * 4 * kColumns + i % 4]);
  }
}

void put_six(const uint8_t* values, uint8_t* bytes, int64_t column) {
  for (int64_t i = 0; i < kSixGroup; ++i) {
    const int64_t four = i / 4, at = 4 * column + i % 4;
    bytes[four / 2 * 4 * kColumns + at] |= static_cast<uint8_t>((values[i] & 15) << four % 2 * 4);
    bytes[8 * kColumns + at] |= static_cast<uint8_t>(values[i] >> 4 << 2 * four);
  }
}

void get_six(const uint8_t* bytes, int64_t column, uint8_t* values) {
  for (int64_t i = 0; i < kSixGroup; ++i) {
    const int64_t four = i / 4, at = 4 * column + i % 4;
    const int low = bytes[four / 2 * 4 * kColumns + at] >> four % 2 * 4 & 15;
    values[i] = static_cast<uint8_t>(low | (bytes[8 * kColumns + at] >> 2 * four & 3) << 4);
  }
}

void multiply(const Product& call, const Parallel& parallel) {
  if (call.rows == 0) return;
  kernels::run_tasks(call, (call.rows + kRoundedRows - 1) / kRoundedRows, parallel, &HWY_DYNAMIC_DISPATCH(round_rows));
  int64_t blocks = 0;
  for (int64_t i = 0; i < call.count; ++i) blocks += call.maps[i].matrix.blocks();
  kernels::run_tasks(call, blocks * ((call.rows + kTaskRows - 1) / kTaskRows), parallel,
                     &HWY_DYNAMIC_DISPATCH(multiply_task));
}

void multiply_short(const ShortProduct& call, const Parallel& parallel) {
  if (call.rows == 0) return;
  kernels::run_tasks(call, (call.out + kShortOutputs - 1) / kShortOutputs, parallel, &HWY_DYNAMIC_DISPATCH(short_task));
}

}  // namespace cortado::narrow
#endif
